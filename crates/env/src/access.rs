//! Who may use the files of a database: the setting, and the permission bits that it means.

use serde::{Deserialize, Serialize};

/// What the group of a database's files may do with them. Others may never do anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupAccess {
    /// Nothing: files are created with mode 0600, directories with 0700. The default.
    #[default]
    None,
    /// Read: 0640 and 0750. It suits backup programs and read-only opens of another user.
    Read,
    /// Read and write: 0660 and 0770. It suits operators' tools of another user.
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
