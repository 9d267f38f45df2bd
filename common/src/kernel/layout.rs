//! Structures whose bytes cross between kernel and process: declared once, with every size and offset written down and
//! checked by the compiler, and turned into bytes without `unsafe`.

/// A field whose bytes are its value in the machine's own order, without padding.
pub trait Plain: Copy {
    /// Bytes that it takes.
    const SIZE: usize;
    /// Writes itself at the start of `into`, which is at least [`Self::SIZE`] long.
    fn put(&self, into: &mut [u8]);
    /// Reads itself from the start of `from`, which is at least [`Self::SIZE`] long.
    fn take(from: &[u8]) -> Self;
}

macro_rules! plain_number {
    ($($number:ty),*) => {$(
        impl Plain for $number {
            const SIZE: usize = size_of::<Self>();

            fn put(&self, into: &mut [u8]) {
                into[..Self::SIZE].copy_from_slice(&self.to_ne_bytes());
            }

            fn take(from: &[u8]) -> Self {
                let mut bytes = [0; Self::SIZE];
                bytes.copy_from_slice(&from[..Self::SIZE]);
                Self::from_ne_bytes(bytes)
            }
        }
    )*};
}

plain_number!(u16, u32, u64);

impl<const N: usize> Plain for [u8; N] {
    const SIZE: usize = N;

    fn put(&self, into: &mut [u8]) {
        into[..N].copy_from_slice(self);
    }

    fn take(from: &[u8]) -> Self {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&from[..N]);
        bytes
    }
}

/// FNV-1a over `bytes`, going on from `hash`: identifies layouts, protects nothing.
pub const fn mix(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash
}

/// Where [`mix`] starts.
pub const START: u64 = 0xcbf2_9ce4_8422_2325;

/// Declares a structure with its size and the offset of each field. It does not compile when an offset is wrong or when
/// the compiler would put padding somewhere; padding is a field of its own.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($size:literal) {
            $($(#[$field_meta:meta])* $field:ident: $type:ty = $offset:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        const _: () = {
            assert!(size_of::<$name>() == $size, "the size differs from the written one");
            $(assert!(core::mem::offset_of!($name, $field) == $offset, "an offset differs from the written one");)*
            assert!(0 $(+ <$type as $crate::kernel::layout::Plain>::SIZE)* == $size, "padding must be a field");
        };

        impl $name {
            /// Bytes that it takes in a map.
            pub const SIZE: usize = $size;
            /// Changes when a name, an offset or the size does.
            pub const LAYOUT: u64 = {
                let mut hash = $crate::kernel::layout::mix($crate::kernel::layout::START, stringify!($name).as_bytes());
                hash = $crate::kernel::layout::mix(hash, &($size as u64).to_le_bytes());
                $(
                    hash = $crate::kernel::layout::mix(hash, stringify!($field).as_bytes());
                    hash = $crate::kernel::layout::mix(hash, &($offset as u64).to_le_bytes());
                )*
                hash
            };

            /// As it lies in a map.
            pub fn to_bytes(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                $($crate::kernel::layout::Plain::put(&self.$field, &mut bytes[$offset..]);)*
                bytes
            }

            /// Back from a map.
            pub fn from_bytes(bytes: &[u8; $size]) -> Self {
                Self { $($field: $crate::kernel::layout::Plain::take(&bytes[$offset..]),)* }
            }
        }
    };
}

pub(crate) use layout;
