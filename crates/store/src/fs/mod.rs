//! [`StoreFs`]: files, logs and directories of a volume.
