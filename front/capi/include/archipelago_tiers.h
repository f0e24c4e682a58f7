/*
 * archipelago_tiers.h: files over a hierarchy of storage devices, for C and C++.
 *
 * A storage engine opens tiers over a list of devices, the fastest first. Then it creates, reads and removes its files
 * through them. For each file it says what the file is (log, table of a level, ...) and why it is written (flush,
 * compaction, ...). The tiers choose the device of the file, move the file when space gets low, and keep copies of
 * frequently read ranges on faster devices. docs/design/tiers.md says how, and docs/guide/c-library.md has an example.
 *
 * Rules for all calls:
 *
 *  - Tiers, files, directories and locks are positive numbers. A number that is not open is refused (EBADF). They
 *    are no file descriptors of the system, so close(2) and similar calls do not accept them.
 *  - A call that fails returns -1, sets errno, and leaves a sentence for archipelago_last_error(). It changes nothing
 *    unless its description says otherwise.
 *  - Any thread may make any call at any time, also on the same file.
 *  - A pointer is valid for its use during the call, or NULL if the description allows it. The library keeps no pointer
 *    that is passed in.
 *  - Paths are bytes that end with a zero. They need not be UTF-8. They begin with the root with which the tiers were
 *    opened, by default "tiers:". An example is "tiers:/db/000001.log". There is no current directory, and no "..".
 *    A name in a path has at most 255 bytes. A call that would create a longer one fails with ENAMETOOLONG.
 *  - One process has tiers open at a time.
 *  - Never call the library from a signal handler, or in a child between fork and exec.
 *
 * Differences from POSIX:
 *
 *  - The handle that created a file writes it once, from front to back. A write at any other place than the end, an
 *    open for writing of a file that has bytes, and a truncation below the length are refused (EOPNOTSUPP). O_TRUNC replaces
 *    a file. A handle that has the old file open continues to read it.
 *  - Directories have no "." and "..".
 *  - There are no owners, modes or symbolic links. The only time of a file is that of the last write.
 *
 * Durability: written bytes survive a kill of the process when the call returns, and power loss after
 * archipelago_fsync() of the file has returned. Changes of names (creations, renames, links, removals) survive a kill
 * when the call returns, and power loss after archipelago_fsync_dir() of any directory has returned. A change of names
 * that failed because of a device (EIO, ENOSPC) may be found whole after a crash, unless a later change of names or
 * archipelago_fsync_dir() has succeeded before.
 */
#ifndef ARCHIPELAGO_TIERS_H
#define ARCHIPELAGO_TIERS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the interface in this header. It must equal that of the library, which archipelago_abi() returns. */
#define ARCHIPELAGO_ABI 5

/* ---- The library and its errors ---------------------------------------------------------------------------------- */

/* Returns the version of the library, such as "0.1.0". */
const char *archipelago_version(void);

/* Returns the version of the library's interface, which must equal ARCHIPELAGO_ABI. */
uint32_t archipelago_abi(void);

/* Kinds of errors, by what the caller can do. errno has the exact error. */
enum {
  ARCHIPELAGO_ERROR_NONE = 0,             /* no call of this thread has failed */
  ARCHIPELAGO_ERROR_INVALID_ARGUMENT = 1, /* correct the call: EINVAL, EBADF, ENAMETOOLONG, EOVERFLOW */
  ARCHIPELAGO_ERROR_BUSY = 2,             /* try again later: EBUSY */
  ARCHIPELAGO_ERROR_NOT_FOUND = 3,        /* it does not exist: ENOENT; a device is missing */
  ARCHIPELAGO_ERROR_CORRUPT = 4,          /* stored bytes are not what was written: EBADMSG */
  ARCHIPELAGO_ERROR_IO = 5,               /* the device or the system refused: EIO, ENOSPC, EEXIST, EISDIR, ... */
  ARCHIPELAGO_ERROR_READ_ONLY = 6,        /* EROFS */
  ARCHIPELAGO_ERROR_FENCED = 7,           /* another process owns it now: ESTALE; open it again */
  ARCHIPELAGO_ERROR_UNSUPPORTED = 8,      /* not possible here, or another format version: EOPNOTSUPP */
  ARCHIPELAGO_ERROR_INTERNAL = 9,         /* a mistake in the library: EIO; please report the text */
  ARCHIPELAGO_ERROR_CLOSED = 10           /* this process closed, finished or cancelled it: ESHUTDOWN; open it again */
};

/* Returns a sentence about the last failed call of the calling thread, which names the file or setting. It returns ""
 * if no call has failed. The string is valid until the thread's next failed call. */
const char *archipelago_last_error(void);

/* Returns the kind of that error, ARCHIPELAGO_ERROR_*. */
int archipelago_last_error_kind(void);

/* ---- Tiers ------------------------------------------------------------------------------------------------------- */

/* How a device keeps files. */
enum {
  ARCHIPELAGO_DEVICE_DIRECTORY = 0, /* a directory, through the page cache */
  ARCHIPELAGO_DEVICE_DIRECT = 1,    /* a directory; tables with O_DIRECT */
  ARCHIPELAGO_DEVICE_MAPPED = 2,    /* a DAX mount or tmpfs: tables through mappings */
  ARCHIPELAGO_DEVICE_EMULATED = 3   /* a directory that is slowed down as `spec` describes */
};

/* A device. Begin with ARCHIPELAGO_DEVICE_INIT and change the fields that differ. */
typedef struct archipelago_device {
  uint32_t size;           /* sizeof(archipelago_device) */
  int kind;                /* ARCHIPELAGO_DEVICE_* */
  const char *path;        /* a directory for the tiers alone; created if it is missing */
  const char *name;        /* its name in reports; NULL: "tier0", "tier1", ... by position in the list */
  const char *spec;        /* description of an emulated device (docs/guide/emulated-devices.md), else NULL */
  uint64_t capacity_bytes; /* bytes that files may use; 0: the free space of the device */
  double cache_share;      /* fraction that copies of hot files may use, 0 to 1; no meaning on the last device */
  uint32_t writers_max;    /* files that may be written in parallel; 0: by the placement scheme, else by kind */
  uint32_t reserved;       /* 0 */
} archipelago_device;

#define ARCHIPELAGO_DEVICE_INIT \
  { sizeof(archipelago_device), ARCHIPELAGO_DEVICE_DIRECTORY, NULL, NULL, NULL, 0, 1.0, 0, 0 }

/* Access of the file group. Users outside the group have no access. */
enum {
  ARCHIPELAGO_GROUP_NONE = 0, /* none: files have mode 0600, directories 0700 */
  ARCHIPELAGO_GROUP_READ = 1, /* read: 0640 and 0750 */
  ARCHIPELAGO_GROUP_WRITE = 2 /* read and write: 0660 and 0770 */
};

/* Options of an open. Begin with ARCHIPELAGO_OPTIONS_INIT and change the fields that differ. */
typedef struct archipelago_options {
  uint32_t size;    /* sizeof(archipelago_options) */
  int fast_levels;  /* number of levels on the fastest device: L0, and then levels from the one that L0 compacts
                       into; -1: as the placement scheme and the observed load say */
  const char *root; /* start of all paths; NULL: "tiers:". Use the same at every open, because names contain it. */
  int must_exist;   /* not 0: it is an error (ENOENT) if no device has tiers, for example because nothing is mounted
                       there; 0: such devices become new tiers */
  int group_access; /* ARCHIPELAGO_GROUP_*; the umask of the process has no effect */
} archipelago_options;

#define ARCHIPELAGO_OPTIONS_INIT \
  { sizeof(archipelago_options), -1, NULL, 0, ARCHIPELAGO_GROUP_NONE }

/* Opens tiers over `count` devices (1 to 16), the fastest first, and creates them if the directories are empty.
 * `options` may be NULL. Returns the number of the tiers. Errors: EINVAL for devices that contradict each other or
 * hold other data, ENOENT for a missing device (the sentence says what lies there), EBUSY if another process has them
 * open, EOPNOTSUPP for another format version. */
int archipelago_tiers_open(const archipelago_device *devices, size_t count, const archipelago_options *options);

/* Opens the tiers of a settings file: TOML with a table [[tiers]] for each device (docs/operate/tiers.md). Other
 * settings of the file have no effect. Relative paths of devices begin at the current directory of the process. */
int archipelago_tiers_open_file(const char *settings, const archipelago_options *options);

/* Closes the tiers. While files, directories or locks of them are open, or another thread is in a call on them, it
 * fails with EBUSY, and the tiers stay open. After any other error the tiers are closed nevertheless, as with the
 * system's close(2). Bytes that were not synced then survive a kill of the process, but possibly not power loss. */
int archipelago_tiers_close(int tiers);

/* Writes a report for people: devices with their files by level, copies, and moves with their reasons. It writes at
 * most `size` bytes, including the zero at the end, to `buffer`, which may be NULL if `size` is 0. Returns the length
 * of the whole text without the zero. If that is `size` or more, call again with more room. */
int64_t archipelago_stats(int tiers, char *buffer, size_t size);

/* Stores the number of bytes that new files may take on all devices together. */
int archipelago_free_bytes(int tiers, uint64_t *bytes);

/* ---- Context: what a file is, and why it is written or read ------------------------------------------------------ */

/* Class of a file. The class and the level decide the device. */
enum {
  ARCHIPELAGO_CLASS_OTHER = 0,   /* small files of any kind: the fastest device */
  ARCHIPELAGO_CLASS_LOG = 1,     /* write-ahead log: the fastest device */
  ARCHIPELAGO_CLASS_TABLE = 2,   /* sorted table; without a level it counts as one of a deep level */
  ARCHIPELAGO_CLASS_MANIFEST = 3, /* files that commits wait for besides the log: the fastest device */
  ARCHIPELAGO_CLASS_VALUES = 4 /* value file of a database that keeps large values apart. It has no level and lies with
                                  the deep levels, and its hot ranges are copied to faster devices */
};

/* Purpose of a read or write. Only reads for a user count when the tiers decide which ranges are hot. */
enum {
  ARCHIPELAGO_FOR_READ = 0,
  ARCHIPELAGO_FOR_WRITE = 1,
  ARCHIPELAGO_FOR_RECOVERY = 2,
  ARCHIPELAGO_FOR_FLUSH = 3,
  ARCHIPELAGO_FOR_COMPACTION = 4,
  ARCHIPELAGO_FOR_GARBAGE = 5, /* collection of separated values */
  ARCHIPELAGO_FOR_INGEST = 6,
  ARCHIPELAGO_FOR_MAINTENANCE = 7 /* checking, copying, backup */
};

/* A context. Begin with ARCHIPELAGO_CONTEXT_INIT and set the fields that you know. */
typedef struct archipelago_context {
  uint32_t size;            /* sizeof(archipelago_context) */
  int file_class;           /* ARCHIPELAGO_CLASS_* */
  int level;                /* of a table: 0 to 63; -1: unknown, or no table */
  int reason;               /* ARCHIPELAGO_FOR_* */
  int from_level;           /* of a compaction: the upper level of its inputs; -1: one above `level` */
  uint32_t family;          /* column family of the level: any number that does not change while the tiers are open.
                               Levels are counted from the one that L0 of the family compacts into. 0: there is one
                               family, or it is unknown */
  uint64_t size_hint_bytes; /* expected length of a new file in bytes; 0: unknown */
} archipelago_context;

#define ARCHIPELAGO_CONTEXT_INIT \
  { sizeof(archipelago_context), ARCHIPELAGO_CLASS_OTHER, -1, ARCHIPELAGO_FOR_READ, -1, 0, 0 }

/* Makes the calling thread carry a context. It applies to files that the thread opens without a context, and its reason
 * applies to all reads of the thread. So an engine marks a job once, at its start. NULL removes the context. */
int archipelago_thread_context(const archipelago_context *context);

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* Opens a file as open(2) does, with the same flags (O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_APPEND,
 * O_DIRECT, O_SYNC, O_DSYNC). O_CLOEXEC and O_NOATIME have no effect, and other flags are refused. A file that is
 * opened for writing must be new, or replaced by O_TRUNC, or have length 0. An empty file that no handle writes is
 * replaced by a new file with another file_id, also without O_TRUNC. If a handle writes it, the open fails with EBUSY.
 * O_CREAT | O_EXCL fails with EEXIST whenever something has the name, whatever other threads do. If `context` is NULL,
 * the context of the thread applies, or else one of ARCHIPELAGO_CLASS_OTHER. The context of a new file decides its
 * device. Returns the number of the file. */
int archipelago_open(int tiers, const char *path, int flags, const archipelago_context *context);

/* Closes a file without a sync. Running calls of other threads on it complete. Closing the handle that created a file
 * ends its writing, even if other handles still read it. */
int archipelago_close(int file);

/* Reads up to `count` bytes from the end of the last read on. Returns the number of bytes, which is smaller only at
 * the end of the file, and 0 there. After an error the bytes of `buffer` are undefined. */
int64_t archipelago_read(int file, void *buffer, size_t count);

/* Reads at `offset`, independently of other reads. */
int64_t archipelago_pread(int file, void *buffer, size_t count, uint64_t offset);

/* Appends all `count` bytes and returns `count`. After an error other than EBADF, EINVAL, or EOPNOTSUPP for a write
 * that is not at the end, the file accepts no more writes, and it is unknown how many of the bytes it has. */
int64_t archipelago_write(int file, const void *buffer, size_t count);

/* Appends as archipelago_write() does if the file has `offset` bytes. Otherwise it fails with EOPNOTSUPP and changes
 * nothing. */
int64_t archipelago_pwrite(int file, const void *buffer, size_t count, uint64_t offset);

/* Sets the position of the next archipelago_read(): `offset` from the beginning (SEEK_SET, 0), from the current
 * position (SEEK_CUR, 1) or from the end (SEEK_END, 2). Returns the position from the beginning, or EOVERFLOW if it
 * does not fit into an int64_t. Writes always go to the end. */
int64_t archipelago_lseek(int file, int64_t offset, int whence);

/* Makes the written bytes survive power loss. A handle for reading may sync only while another handle writes the file,
 * and gets EOPNOTSUPP otherwise. After an error the file accepts no more writes or syncs. */
int archipelago_fsync(int file);

/* Does the same as archipelago_fsync(). */
int archipelago_fdatasync(int file);

/* Appends zeros until the file has `length` bytes. Fails with EOPNOTSUPP if it has more already. */
int archipelago_ftruncate(int file, uint64_t length);

/* Result of archipelago_stat() and archipelago_fstat(). */
typedef struct archipelago_stat_t {
  uint64_t size;        /* bytes; 0 for a directory */
  uint64_t file_id;     /* number that no other file of these tiers ever has; 0 for a directory */
  uint64_t modified_ms; /* time of the write on its current device, in milliseconds since 1970. A table that moves to
                           another device is written anew there. 0 for a directory or a file without a name, or if the
                           device does not know it */
  int is_directory;     /* 0 or 1 */
  int file_class;       /* ARCHIPELAGO_CLASS_* */
  int level;            /* -1: none */
  int device;           /* its position in the list of devices, 0 for the fastest; -1 for a directory or a file
                           without a name */
  uint32_t links;       /* number of names */
  uint32_t copies;      /* number of copies for reading on faster devices */
  int fastest_copy;     /* the fastest device with a copy of the file or of a part of it; -1: none */
  int is_written;       /* 0 or 1: it is open for writing */
} archipelago_stat_t;

/* Stores facts about an open file. */
int archipelago_fstat(int file, archipelago_stat_t *stat);

/* Advice of archipelago_fadvise(). */
enum {
  ARCHIPELAGO_WILL_NEED = 0, /* the bytes will be read soon */
  ARCHIPELAGO_WONT_NEED = 1  /* the bytes will not be read soon, so no memory should cache them */
};

/* Gives advice about `length` bytes at `offset` of a file that is open for reading. Length 0 means all bytes from
 * there on. ARCHIPELAGO_WILL_NEED fails with EOPNOTSUPP if it has no effect, because reads bypass every cache
 * (O_DIRECT of the file or of its device). A program that scans such a file has to read ahead into its own memory. */
int archipelago_fadvise(int file, uint64_t offset, uint64_t length, int advice);

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* Stores facts about a file or directory, including its current device. */
int archipelago_stat(int tiers, const char *path, archipelago_stat_t *stat);

/* Returns 1 if a file or directory of that name exists, and 0 otherwise. */
int archipelago_exists(int tiers, const char *path);

/* Removes a name. The file is removed with its last name and the last handle that reads or writes it. Until then
 * readers see what is written to it. */
int archipelago_unlink(int tiers, const char *path);

/* Renames a file, and replaces a file of the new name, or renames a directory with its contents, and replaces an empty
 * directory of the new name. It is atomic: after a kill everything has the old name or the new one. Open files stay
 * open. Errors: ENOENT; EISDIR for a file in the place of a directory; ENOTDIR or ENOTEMPTY for a directory in the
 * place of a file, or of a directory that is not empty; EINVAL for a directory that would contain itself; EBUSY for a
 * directory in which a lock is held; EOPNOTSUPP for a directory with the log of a database of the Rust library,
 * because the name of the directory is needed to find the end of that log. */
int archipelago_rename(int tiers, const char *from, const char *to);

/* Gives a file one more name. Fails with EEXIST if the name is taken. `to` may lie outside the tiers. Then a closed
 * file is linked there if its device is on the same file system. Otherwise it fails with EOPNOTSUPP, and the caller
 * has to copy. */
int archipelago_link(int tiers, const char *from, const char *to);

/* Creates a directory and its missing parents durably. Fails with EEXIST if the name is taken. */
int archipelago_mkdir(int tiers, const char *path);

/* Removes an empty directory. Fails with ENOTEMPTY if it is not empty. */
int archipelago_rmdir(int tiers, const char *path);

/* Makes all changes of names so far survive power loss. `path` is any directory. */
int archipelago_fsync_dir(int tiers, const char *path);

/* An entry of a directory. */
typedef struct archipelago_dirent {
  uint64_t size; /* bytes; 0 for a directory */
  int is_directory;
  int reserved;
  char name[256]; /* name within the directory, byte for byte, which ends with a zero */
} archipelago_dirent;

/* Opens a directory for reading. Its current entries are sorted by name. Returns the number of the directory. */
int archipelago_opendir(int tiers, const char *path);

/* Stores the next entry. Returns 1 if there was one, and 0 at the end. */
int archipelago_readdir(int directory, archipelago_dirent *entry);

/* Closes a directory. */
int archipelago_closedir(int directory);

/* Assigns a table to another level without writing it anew (a trivial move). If its device is too fast for that level,
 * the tiers move the table in the background. After an error the change is not recorded. */
int archipelago_set_level(int tiers, const char *path, int level);

/* Does the same as archipelago_set_level(), with the job that moved the table: the level, the family, and for a
 * compaction the level from which the table comes. So a move out of L0 says which level L0 compacts into. `context`
 * may be NULL only if the thread carries a context. */
int archipelago_reassign(int tiers, const char *path, const archipelago_context *context);

/* Takes the lock of that name, which is a file that is created if it is missing. Returns the number of the lock. Fails
 * with EBUSY if the lock is taken. */
int archipelago_lock(int tiers, const char *path);

/* Releases a lock. The file stays. */
int archipelago_unlock(int lock);

#ifdef __cplusplus
}
#endif

#endif /* ARCHIPELAGO_TIERS_H */
