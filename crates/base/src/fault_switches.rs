//! Fault switches: steps of a protocol that a checker leaves out, to prove that it notices.
//!
//! A component declares its switches with [`fault_switches!`](crate::fault_switches) and asks them
//! at the steps in question. The crate of the component has a cargo feature `sabotage`, which only
//! the packages of `check/` turn on. Without the feature the struct is empty and every query is a
//! constant function that returns `false`, so the compiler removes the step's branch.
//!
//! Cost: none without the feature; a test of a `bool` with it.

/// Declares a struct of fault switches for a crate with the cargo feature `sabotage`.
///
/// Each switch becomes a public field, if the feature is on, and a query of the same name.
///
/// ```
/// archipelago_base::fault_switches! {
///     /// Steps that a checker leaves out.
///     Sabotage {
///         /// The node ignores the end of its lease.
///         no_lease,
///     }
/// }
///
/// assert!(!Sabotage::default().no_lease());
/// ```
#[macro_export]
macro_rules! fault_switches {
    ($(#[$about:meta])* $name:ident { $($(#[$step:meta])* $switch:ident),* $(,)? }) => {
        $(#[$about])*
        #[cfg(feature = "sabotage")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$step])* pub $switch: bool,)*
        }

        $(#[$about])*
        ///
        /// This build has no switches, because the cargo feature `sabotage` is off.
        #[cfg(not(feature = "sabotage"))]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {}

        #[cfg(feature = "sabotage")]
        impl $name {
            $(#[inline] pub(crate) const fn $switch(self) -> bool { self.$switch })*
        }

        #[cfg(not(feature = "sabotage"))]
        impl $name {
            $(#[inline] pub(crate) const fn $switch(self) -> bool { false })*
        }
    };
}
