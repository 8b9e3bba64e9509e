//! The bytes that `Arbitrary` reads a value from: numbers as they are in memory, a byte before what there may be or may follow,
//! and a number that chooses a variant.

/// A value that can be written so.
pub trait Input {
    /// Appends it.
    fn put(&self, bytes: &mut Vec<u8>);

    /// All of it.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        bytes
    }
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Input for $type {
            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }
        }
    )*};
}
number!(u8, u16, u32, u64, i64);

impl Input for bool {
    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(*self));
    }
}

impl<T: Input> Input for Option<T> {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.is_some().put(bytes);
        self.iter().for_each(|value| value.put(bytes));
    }
}

impl<T: Input> Input for Vec<T> {
    fn put(&self, bytes: &mut Vec<u8>) {
        for value in self {
            true.put(bytes);
            value.put(bytes);
        }
        false.put(bytes);
    }
}

impl<A: Input, B: Input> Input for (A, B) {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.0.put(bytes);
        self.1.put(bytes);
    }
}

/// Appends what chooses the variant of this index out of `count`.
pub fn put_variant(index: u32, count: u32, bytes: &mut Vec<u8>) {
    // Read as the upper half of a product.
    let number = (u64::from(index) << 32).div_ceil(u64::from(count));
    (number as u32).put(bytes);
}

/// Defines a structure that is read and written.
macro_rules! input_struct {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(arbitrary::Arbitrary, Clone, Debug, Default, PartialEq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }

        impl $crate::input::Input for $name {
            fn put(&self, bytes: &mut Vec<u8>) {
                $(self.$field.put(bytes);)*
            }
        }
    };
}

/// Defines an enumeration that is read and written, of variants with named fields.
macro_rules! input_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident { $($field:ident: $type:ty),* },)* }) => {
        $(#[$meta])*
        #[derive(arbitrary::Arbitrary, Clone, Debug, PartialEq)]
        pub enum $name { $($(#[$variant_meta])* $variant { $($field: $type),* },)* }

        impl $crate::input::Input for $name {
            fn put(&self, bytes: &mut Vec<u8>) {
                const NAMES: &[&str] = &[$(stringify!($variant)),*];
                let index = |name: &str| NAMES.iter().position(|known| *known == name).unwrap_or_default() as u32;
                match self {
                    $(Self::$variant { $($field),* } => {
                        $crate::input::put_variant(index(stringify!($variant)), NAMES.len() as u32, bytes);
                        $($field.put(bytes);)*
                    })*
                }
            }
        }
    };
}
pub(crate) use {input_enum, input_struct};
