//! A cursor over msgpack that copies nothing and builds nothing.
//!
//! Every length is checked against the bytes that are left before it is believed, and nothing recurses, so that no input
//! makes it allocate or overflow.

use rmp::Marker;

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Malformed {
    /// It ends before it should.
    Truncated,
    /// A value is of another type than its place asks for.
    Type,
    /// A text is not UTF-8.
    Utf8,
    /// An event lacks a field without which it says nothing.
    Field,
    /// More blocks or tokens than any engine has.
    Size,
    /// Not JSON, or not of the shape that its place asks for.
    Json,
}

impl Malformed {
    /// As a metric label.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Type => "type",
            Self::Utf8 => "utf8",
            Self::Field => "field",
            Self::Size => "size",
            Self::Json => "json",
        }
    }
}

/// Bytes of a value by its first byte; 0 where the first byte does not tell.
const WIDTHS: [u8; 256] = {
    let mut widths = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        widths[byte] = match byte {
            // Small integers, nil and booleans.
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => 1,
            // Integers and floats.
            0xcc | 0xd0 => 2,
            0xcd | 0xd1 => 3,
            0xce | 0xd2 | 0xca => 5,
            0xcf | 0xd3 | 0xcb => 9,
            _ => 0,
        };
        byte += 1;
    }
    widths
};

#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn peek(&self) -> Result<Marker, Malformed> {
        self.rest.first().map(|byte| Marker::from_u8(*byte)).ok_or(Malformed::Truncated)
    }

    fn marker(&mut self) -> Result<Marker, Malformed> {
        let marker = self.peek()?;
        self.rest = &self.rest[1..];
        Ok(marker)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.rest.split_at_checked(length).ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    /// A big-endian unsigned integer of `width` bytes, at most eight.
    fn number(&mut self, width: usize) -> Result<u64, Malformed> {
        Ok(self.take(width)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// The next `N` bytes.
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    fn length(&mut self, width: usize) -> Result<usize, Malformed> {
        usize::try_from(self.number(width)?).map_err(|_| Malformed::Truncated)
    }

    /// A length of elements, each of which takes at least one byte.
    fn count(&mut self, count: usize, bytes_each: usize) -> Result<usize, Malformed> {
        if count.saturating_mul(bytes_each) > self.rest.len() { Err(Malformed::Truncated) } else { Ok(count) }
    }

    /// Elements of the array that begins here.
    pub(super) fn array(&mut self) -> Result<usize, Malformed> {
        let count = match self.marker()? {
            Marker::FixArray(count) => usize::from(count),
            Marker::Array16 => self.length(2)?,
            Marker::Array32 => self.length(4)?,
            _ => return Err(Malformed::Type),
        };
        self.count(count, 1)
    }

    /// Pairs of the map that begins here.
    pub(super) fn map(&mut self) -> Result<usize, Malformed> {
        let count = match self.marker()? {
            Marker::FixMap(count) => usize::from(count),
            Marker::Map16 => self.length(2)?,
            Marker::Map32 => self.length(4)?,
            _ => return Err(Malformed::Type),
        };
        self.count(count, 2)
    }

    /// Takes a nil, if one is here.
    pub(super) fn nil(&mut self) -> Result<bool, Malformed> {
        let nil = self.peek()? == Marker::Null;
        if nil {
            self.rest = &self.rest[1..];
        }
        Ok(nil)
    }

    /// Bits of an integer of any width; negative ones as two's complement.
    pub(super) fn bits(&mut self) -> Result<u64, Malformed> {
        Ok(match self.marker()? {
            Marker::FixPos(value) => u64::from(value),
            Marker::U8 => self.number(1)?,
            // Nearly every token id is one of these two.
            Marker::U16 => u64::from(u16::from_be_bytes(self.bytes()?)),
            Marker::U32 => u64::from(u32::from_be_bytes(self.bytes()?)),
            Marker::U64 | Marker::I64 => u64::from_be_bytes(self.bytes()?),
            Marker::FixNeg(value) => i64::from(value).cast_unsigned(),
            Marker::I8 => self.signed(1)?,
            Marker::I16 => self.signed(2)?,
            Marker::I32 => self.signed(4)?,
            _ => return Err(Malformed::Type),
        })
    }

    fn signed(&mut self, width: usize) -> Result<u64, Malformed> {
        let unused = 64 - 8 * width;
        Ok((self.number(width)?.cast_signed() << unused >> unused).cast_unsigned())
    }

    /// An integer from 0 to 2³²−1.
    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.bits()?).map_err(|_| Malformed::Type)
    }

    /// A number as seconds.
    pub(super) fn seconds(&mut self) -> Result<f64, Malformed> {
        Ok(match self.peek()? {
            Marker::F64 => {
                self.marker()?;
                f64::from_bits(self.number(8)?)
            }
            Marker::F32 => {
                self.marker()?;
                let bits = u32::try_from(self.number(4)?).map_err(|_| Malformed::Type)?;
                f64::from(f32::from_bits(bits))
            }
            #[expect(clippy::cast_precision_loss, reason = "seconds, for an age in a gauge")]
            _ => self.bits()? as f64,
        })
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        let length = match self.marker()? {
            Marker::FixStr(length) => usize::from(length),
            Marker::Str8 => self.length(1)?,
            Marker::Str16 => self.length(2)?,
            Marker::Str32 => self.length(4)?,
            _ => return Err(Malformed::Type),
        };
        std::str::from_utf8(self.take(length)?).map_err(|_| Malformed::Utf8)
    }

    pub(super) fn binary(&mut self) -> Result<&'a [u8], Malformed> {
        let length = match self.marker()? {
            Marker::Bin8 => self.length(1)?,
            Marker::Bin16 => self.length(2)?,
            Marker::Bin32 => self.length(4)?,
            _ => return Err(Malformed::Type),
        };
        self.take(length)
    }

    /// Passes over one value, whatever it holds.
    pub(super) fn skip(&mut self) -> Result<(), Malformed> {
        let mut open: usize = 1;
        while open > 0 {
            open -= 1;
            // Token ids and hashes are most of a message: they are passed by their first byte alone.
            if let Some(width) = self.rest.first().map(|byte| usize::from(WIDTHS[usize::from(*byte)]))
                && width > 0
            {
                self.rest = self.rest.get(width..).ok_or(Malformed::Truncated)?;
                continue;
            }
            let inside = match self.peek()? {
                Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => self.array()?,
                Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => 2 * self.map()?,
                _ => {
                    self.skip_leaf()?;
                    0
                }
            };
            open += inside;
            // Each open value needs a byte: a lie is found here, not after a long walk.
            self.count(open, 1)?;
        }
        Ok(())
    }

    fn skip_leaf(&mut self) -> Result<(), Malformed> {
        let length = match self.marker()? {
            Marker::FixStr(length) => usize::from(length),
            Marker::Str8 | Marker::Bin8 => self.length(1)?,
            Marker::Str16 | Marker::Bin16 => self.length(2)?,
            Marker::Str32 | Marker::Bin32 => self.length(4)?,
            Marker::U8 | Marker::I8 => 1,
            Marker::U16 | Marker::I16 | Marker::FixExt1 => 2,
            Marker::FixExt2 => 3,
            Marker::U32 | Marker::I32 | Marker::F32 => 4,
            Marker::FixExt4 => 5,
            Marker::U64 | Marker::I64 | Marker::F64 => 8,
            Marker::FixExt8 => 9,
            Marker::FixExt16 => 17,
            Marker::Ext8 => 1 + self.length(1)?,
            Marker::Ext16 => 1 + self.length(2)?,
            Marker::Ext32 => 1 + self.length(4)?,
            Marker::Reserved => return Err(Malformed::Type),
            _ => 0,
        };
        self.take(length).map(|_| ())
    }

    /// The bytes of the next value, which is passed over.
    pub(super) fn value(&mut self) -> Result<Self, Malformed> {
        let before = self.rest;
        self.skip()?;
        Ok(Self { rest: &before[..before.len() - self.rest.len()] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_agree_with_the_markers() {
        for byte in 0..=u8::MAX {
            let mut message = vec![byte];
            message.extend([0; 20]);
            let mut reader = Reader::new(&message);
            let container = matches!(Marker::from_u8(byte), Marker::FixArray(_) | Marker::Array16 | Marker::Array32)
                || matches!(Marker::from_u8(byte), Marker::FixMap(_) | Marker::Map16 | Marker::Map32);
            let width = usize::from(WIDTHS[usize::from(byte)]);
            if container {
                assert_eq!(width, 0, "{byte:#x}");
            } else if reader.skip_leaf().is_ok() && width > 0 {
                assert_eq!(width, 21 - reader.rest.len(), "{byte:#x}");
            }
        }
        // What has a width is everything but texts, bytes, extensions and containers.
        assert_eq!(WIDTHS.iter().filter(|width| **width > 0).count(), 128 + 32 + 3 + 10);
    }

    #[test]
    fn a_value_cut_short_is_truncated() {
        for whole in [&[0xcd, 1, 2][..], &[0xce, 1, 2, 3, 4], &[0xcf, 1, 2, 3, 4, 5, 6, 7, 8], &[0x92, 1, 0xcc, 200]] {
            assert_eq!(Reader::new(whole).skip(), Ok(()));
            for length in 0..whole.len() {
                assert_eq!(Reader::new(&whole[..length]).skip(), Err(Malformed::Truncated), "{whole:x?} {length}");
            }
        }
    }
}
