//! Names for what keeps a machine from harm, so that the simulator can take one out and must find the harm.

/// Makes `Safeguard` of these names, with all of them in `Safeguard::ALL`.
#[macro_export]
macro_rules! safeguards {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Something that keeps from harm, and that only the simulator takes out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ::serde::Serialize, ::serde::Deserialize)]
        pub enum Safeguard {
            $($(#[$doc])* $name,)*
        }

        impl Safeguard {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}
