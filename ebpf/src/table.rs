//! Maps with bytes as keys and values: structures of `forebay-common` turn into bytes and back without `unsafe`.

use crate::error::{Error, Stage};
use aya::Ebpf;
use aya::maps::{Array, HashMap, LpmTrie, Map, MapData, PerCpuArray, lpm_trie};

fn take<T: TryFrom<Map, Error = aya::maps::MapError>>(ebpf: &mut Ebpf, name: &str) -> Result<T, Error> {
    let map = ebpf.take_map(name).ok_or_else(|| Error::new(Stage::Open, name, "the object has no such map"))?;
    T::try_from(map).map_err(|error| Error::caused(Stage::Open, name, &error))
}

fn failed(name: &'static str) -> impl Fn(aya::maps::MapError) -> Error {
    move |error| Error::caused(Stage::Map, name, &error)
}

/// An array of values.
pub(crate) struct Values<const V: usize> {
    name: &'static str,
    map: Array<MapData, [u8; V]>,
}

impl<const V: usize> Values<V> {
    pub(crate) fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Self, Error> {
        Ok(Self { name, map: take(ebpf, name)? })
    }

    pub(crate) fn of(map: MapData, name: &'static str) -> Result<Self, Error> {
        let map = Array::try_from(Map::Array(map)).map_err(failed(name))?;
        Ok(Self { name, map })
    }

    pub(crate) fn read(&self, index: u32) -> Result<[u8; V], Error> {
        self.map.get(&index, 0).map_err(failed(self.name))
    }

    pub(crate) fn write(&mut self, index: u32, value: [u8; V]) -> Result<(), Error> {
        self.map.set(index, value, 0).map_err(failed(self.name))
    }
}

/// A hash map.
pub(crate) struct Table<const K: usize, const V: usize> {
    name: &'static str,
    map: HashMap<MapData, [u8; K], [u8; V]>,
}

impl<const K: usize, const V: usize> Table<K, V> {
    pub(crate) fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Self, Error> {
        Ok(Self { name, map: take(ebpf, name)? })
    }

    pub(crate) fn insert(&mut self, key: [u8; K], value: [u8; V]) -> Result<(), Error> {
        self.map.insert(key, value, 0).map_err(failed(self.name))
    }

    /// False when it was not there.
    pub(crate) fn remove(&mut self, key: [u8; K]) -> Result<bool, Error> {
        match self.map.remove(&key) {
            Ok(()) => Ok(true),
            Err(aya::maps::MapError::KeyNotFound) => Ok(false),
            Err(error) => {
                let error = failed(self.name)(error);
                if error.errno == Some(libc::ENOENT) { Ok(false) } else { Err(error) }
            }
        }
    }

    /// What is there, at most `limit` of it; entries that come or go meanwhile may be missing.
    pub(crate) fn entries(&self, limit: usize) -> Vec<([u8; K], [u8; V])> {
        self.map.iter().filter_map(Result::ok).take(limit).collect()
    }
}

/// A list of prefixes.
pub(crate) struct Prefixes {
    name: &'static str,
    map: LpmTrie<MapData, [u8; 16], u32>,
}

impl Prefixes {
    pub(crate) fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Self, Error> {
        Ok(Self { name, map: take(ebpf, name)? })
    }

    pub(crate) fn insert(&mut self, bits: u32, address: [u8; 16], value: u32) -> Result<(), Error> {
        self.map.insert(&lpm_trie::Key::new(bits, address), value, 0).map_err(failed(self.name))
    }

    pub(crate) fn remove(&mut self, bits: u32, address: [u8; 16]) -> Result<(), Error> {
        self.map.remove(&lpm_trie::Key::new(bits, address)).map_err(failed(self.name))
    }

    /// Every prefix in it.
    pub(crate) fn keys(&self) -> Vec<(u32, [u8; 16])> {
        self.map.keys().filter_map(Result::ok).map(|key| (key.prefix_len(), key.data())).collect()
    }
}

/// Counters that each processor has for itself.
pub(crate) struct PerCpu {
    name: &'static str,
    map: PerCpuArray<MapData, u64>,
}

impl PerCpu {
    pub(crate) fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Self, Error> {
        Ok(Self { name, map: take(ebpf, name)? })
    }

    pub(crate) fn sum(&self, index: u32) -> Result<u64, Error> {
        let values = self.map.get(&index, 0).map_err(failed(self.name))?;
        Ok(values.iter().fold(0, |sum, value| sum.wrapping_add(*value)))
    }
}
