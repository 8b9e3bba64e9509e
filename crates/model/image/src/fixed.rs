//! Records of fixed size, encoded field by field: little-endian, no padding, no alignment demands, no unsafe.

use crate::ImageError;

/// A field of a fixed record.
pub(crate) trait Field: Sized {
    const SIZE: usize;
    fn put(&self, bytes: &mut [u8]);
    /// `bytes` holds exactly `SIZE` bytes.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! integer_field {
    ($($type:ty),*) => {$(
        impl Field for $type {
            const SIZE: usize = size_of::<$type>();
            fn put(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$type>()];
                raw.copy_from_slice(bytes);
                <$type>::from_le_bytes(raw)
            }
        }
    )*};
}
integer_field!(u16, u32, u64, i32, i64);

impl<const N: usize> Field for [u8; N] {
    const SIZE: usize = N;
    fn put(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(self);
    }
    fn get(bytes: &[u8]) -> Self {
        let mut raw = [0; N];
        raw.copy_from_slice(bytes);
        raw
    }
}

impl<const N: usize> Field for [u64; N] {
    const SIZE: usize = 8 * N;
    fn put(&self, bytes: &mut [u8]) {
        for (value, raw) in self.iter().zip(bytes.chunks_exact_mut(8)) {
            value.put(raw);
        }
    }
    fn get(bytes: &[u8]) -> Self {
        let mut values = [0; N];
        for (value, raw) in values.iter_mut().zip(bytes.chunks_exact(8)) {
            *value = u64::get(raw);
        }
        values
    }
}

/// A record whose encoded size is a constant.
pub trait Fixed: Sized {
    /// Encoded size, bytes.
    const SIZE: usize;
    /// Encodes into the first [`Fixed::SIZE`] bytes.
    ///
    /// # Errors
    /// [`ImageError::Truncated`] if `bytes` is shorter.
    fn encode(&self, bytes: &mut [u8]) -> Result<(), ImageError>;
    /// Decodes the first [`Fixed::SIZE`] bytes. Any bytes decode; meaning is checked where it is used.
    ///
    /// # Errors
    /// [`ImageError::Truncated`] if `bytes` is shorter.
    fn decode(bytes: &[u8]) -> Result<Self, ImageError>;
}

/// Declares a struct with its encoding.
macro_rules! fixed_record {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }

        impl $crate::fixed::Fixed for $name {
            const SIZE: usize = 0 $(+ <$type as $crate::fixed::Field>::SIZE)*;
            fn encode(&self, bytes: &mut [u8]) -> Result<(), $crate::ImageError> {
                let mut rest = bytes.get_mut(..Self::SIZE).ok_or($crate::ImageError::Truncated)?;
                $(
                    let (field, after) = rest.split_at_mut(<$type as $crate::fixed::Field>::SIZE);
                    $crate::fixed::Field::put(&self.$field, field);
                    rest = after;
                )*
                let _ = rest;
                Ok(())
            }
            fn decode(bytes: &[u8]) -> Result<Self, $crate::ImageError> {
                let mut rest = bytes.get(..Self::SIZE).ok_or($crate::ImageError::Truncated)?;
                $(
                    let (field, after) = rest.split_at(<$type as $crate::fixed::Field>::SIZE);
                    let $field = <$type as $crate::fixed::Field>::get(field);
                    rest = after;
                )*
                let _ = rest;
                Ok(Self { $($field,)* })
            }
        }
    };
}
pub(crate) use fixed_record;
