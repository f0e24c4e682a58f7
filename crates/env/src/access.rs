//! Access to the files of a database: the setting, and the permission bits that follow from it.

use serde::{Deserialize, Serialize};

/// Rights of the group of a database's files. Other users never have rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupAccess {
    /// No rights: files have mode 0600 and directories 0700. This is the default.
    #[default]
    None,
    /// The right to read: modes 0640 and 0750, for backup programs and read-only opens by another
    /// user.
    Read,
    /// The rights to read and write: modes 0660 and 0770, for tools of another user.
    Write,
}

impl GroupAccess {
    pub(crate) fn file_mode(self) -> u32 {
        match self {
            Self::None => 0o600,
            Self::Read => 0o640,
            Self::Write => 0o660,
        }
    }

    pub(crate) fn dir_mode(self) -> u32 {
        match self {
            Self::None => 0o700,
            Self::Read => 0o750,
            Self::Write => 0o770,
        }
    }
}
