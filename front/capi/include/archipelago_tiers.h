/*
 * archipelago_tiers.h: files over a hierarchy of storage devices, for C and C++.
 *
 * A storage engine opens tiers over a list of devices, the fastest first, and from then on creates, reads and
 * removes its files through them. With each file it says what the file is (log, table of a level, ...) and for what it
 * is written (flush, compaction, ...); the tiers decide on which device it lies, move it when space gets low, and keep
 * copies of what is read a lot on faster devices. docs/design/tiers.md says how, and docs/guide/c-library.md has an
 * example.
 *
 * Rules for all calls:
 *
 *  - Tiers, files, directories and locks are positive numbers. A number that is not open is refused (EBADF). They
 *    are no file descriptors of the system: close(2) and the like do not know them.
 *  - A call that fails returns -1, sets errno, and leaves a sentence for archipelago_last_error(). It changes nothing
 *    unless its description says otherwise.
 *  - Every call may be made by any thread at any time, also on the same file.
 *  - A pointer is NULL where that is said to be possible, or valid for what it is used for, during the call. Nothing
 *    that is passed in is kept.
 *  - Paths are bytes that end with a zero. They begin with the root that the tiers were opened with, "tiers:" if none
 *    was given: "tiers:/db/000001.log". There is no current directory, and no "..".
 *  - One process has tiers open at a time.
 *  - Never call the library from a signal handler, or in a child between fork and exec.
 *
 * What differs from POSIX:
 *
 *  - A file is written once, front to back, by the handle that created it. A write anywhere but at the end, a file
 *    that is opened for writing although it has bytes, and a truncation below the length are refused (EOPNOTSUPP).
 *    O_TRUNC replaces a file: who has the old one open goes on reading it.
 *  - Directories have no "." and "..".
 *  - There are no owners, modes or symbolic links, and no times but that of the last write.
 *
 * Durability: what was written survives a kill of the process when the call returns, and power loss once
 * archipelago_fsync() of the file has returned. Names (creations, renames, links, removals) survive a kill when the call
 * returns, and power loss once archipelago_fsync_dir() of any directory has returned.
 */
#ifndef ARCHIPELAGO_TIERS_H
#define ARCHIPELAGO_TIERS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What this header describes; archipelago_abi() tells what the library is. They must be equal. */
#define ARCHIPELAGO_ABI 5

/* ---- The library and its errors ---------------------------------------------------------------------------------- */

/* The library's version, such as "0.1.0". */
const char *archipelago_version(void);

/* See ARCHIPELAGO_ABI. */
uint32_t archipelago_abi(void);

/* Kinds of errors, by what the caller can do. errno says which it was more closely. */
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
  ARCHIPELAGO_ERROR_INTERNAL = 9,         /* a mistake in the library: EIO; please report the sentence */
  ARCHIPELAGO_ERROR_CLOSED = 10           /* this process closed, finished or cancelled it: ESHUTDOWN; open it again */
};

/* What went wrong in the last call of the calling thread that failed: a sentence that names the file or setting; ""
 * if none failed. The string stays until the thread's next call that fails. */
const char *archipelago_last_error(void);

/* Its kind. */
int archipelago_last_error_kind(void);

/* ---- Tiers ------------------------------------------------------------------------------------------------------- */

/* How files are kept on a device. */
enum {
  ARCHIPELAGO_DEVICE_DIRECTORY = 0, /* a directory, through the page cache */
  ARCHIPELAGO_DEVICE_DIRECT = 1,    /* a directory; tables with O_DIRECT */
  ARCHIPELAGO_DEVICE_MAPPED = 2,    /* a DAX mount or tmpfs: tables through mappings */
  ARCHIPELAGO_DEVICE_EMULATED = 3   /* a directory, as slow as the description in `spec` */
};

/* A device. Begin with ARCHIPELAGO_DEVICE_INIT and set what is to be different. */
typedef struct archipelago_device {
  uint32_t size;           /* sizeof(archipelago_device) */
  int kind;                /* ARCHIPELAGO_DEVICE_* */
  const char *path;        /* a directory that belongs to the tiers alone; made if it is missing */
  const char *name;        /* what reports call it; NULL: "tier0", "tier1", ... by place in the list */
  const char *spec;        /* an emulated device (docs/guide/emulated-devices.md), else NULL */
  uint64_t capacity_bytes; /* how much may be used; 0: what is free there */
  double cache_share;      /* which part copies of hot files may take: 0 to 1; no meaning on the last device */
  uint32_t writers_max;    /* how many files may be written at once; 0: by the placement scheme, else by kind */
  uint32_t reserved;       /* 0 */
} archipelago_device;

#define ARCHIPELAGO_DEVICE_INIT \
  { sizeof(archipelago_device), ARCHIPELAGO_DEVICE_DIRECTORY, NULL, NULL, NULL, 0, 1.0, 0, 0 }

/* What the group of the files may do with them. Others may do nothing. */
enum {
  ARCHIPELAGO_GROUP_NONE = 0, /* nothing: files are created with mode 0600, directories with 0700 */
  ARCHIPELAGO_GROUP_READ = 1, /* read: 0640 and 0750 */
  ARCHIPELAGO_GROUP_WRITE = 2 /* read and write: 0660 and 0770 */
};

/* How tiers are opened. Begin with ARCHIPELAGO_OPTIONS_INIT and set what is to be different. */
typedef struct archipelago_options {
  uint32_t size;    /* sizeof(archipelago_options) */
  int fast_levels;  /* L0 and so many levels less one belong to the fastest device, counted from the one that L0
                       compacts into; -1: as the placement scheme says, and what is observed */
  const char *root; /* what paths begin with; NULL: "tiers:". The same at every open: it is a part of the names. */
  int must_exist;   /* not 0: devices of which none has tiers are an error (ENOENT), as when nothing is mounted where they
                       belong; 0: they become new ones */
  int group_access; /* ARCHIPELAGO_GROUP_*; the umask of the process does not matter */
} archipelago_options;

#define ARCHIPELAGO_OPTIONS_INIT \
  { sizeof(archipelago_options), -1, NULL, 0, ARCHIPELAGO_GROUP_NONE }

/* Opens tiers over `count` devices (1 to 16), the fastest first; makes them if the directories are empty. `options` may
 * be NULL. Returns the number of the tiers.
 * Errors: EINVAL for devices that make no sense or belong to something else, ENOENT for a missing device (the
 * sentence says what lies there), EBUSY if another process has them open, EOPNOTSUPP for another format version. */
int archipelago_tiers_open(const archipelago_device *devices, size_t count, const archipelago_options *options);

/* The same with the devices of a settings file: TOML with a table [[tiers]] for each (docs/operate/tiers.md). Other settings of
 * the file are left alone. Paths of devices count from the current directory of the process. */
int archipelago_tiers_open_file(const char *settings, const archipelago_options *options);

/* Ends the tiers in order. EBUSY while files, directories or locks of them are open: they stay open then. After another
 * error they have ended all the same, as the system's close(2) does: what had not been made durable survives a kill of the
 * process, and not surely power loss. */
int archipelago_tiers_close(int tiers);

/* What the tiers hold and did, as text for people: devices with their files by level, copies, moves and the reasons.
 * Writes at most `size` bytes with the zero at the end into `buffer`, which may be NULL if `size` is 0. Returns
 * the length of the whole text without the zero: call again with more room if it is `size` or more. */
int64_t archipelago_stats(int tiers, char *buffer, size_t size);

/* How many bytes new files may take, over all devices. */
int archipelago_free_bytes(int tiers, uint64_t *bytes);

/* ---- Context: what a file is, and why it is written or read ------------------------------------------------------ */

/* What kind of file. Decides the device together with the level. */
enum {
  ARCHIPELAGO_CLASS_OTHER = 0,   /* anything small: the fastest device */
  ARCHIPELAGO_CLASS_LOG = 1,     /* write-ahead log: the fastest device */
  ARCHIPELAGO_CLASS_TABLE = 2,   /* sorted table; without a level it counts as a deep one */
  ARCHIPELAGO_CLASS_MANIFEST = 3 /* what commits wait for beside the log: the fastest device */
};

/* Who reads or writes. Reads for a user count when it is decided what is hot; the others do not. */
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

/* Begin with ARCHIPELAGO_CONTEXT_INIT and set what is known. */
typedef struct archipelago_context {
  uint32_t size;            /* sizeof(archipelago_context) */
  int file_class;           /* ARCHIPELAGO_CLASS_* */
  int level;                /* of a table: 0 to 63; -1: unknown, or no table */
  int reason;               /* ARCHIPELAGO_FOR_* */
  int from_level;           /* of a compaction: the upper level of its inputs; -1: one above `level` */
  uint32_t family;          /* whose level it is, where there are several trees of levels (column families), by any number that
                               stays the same while the tiers are open: levels are counted from the one that L0 of the family
                               compacts into; 0: there is one, or it is not known */
  uint64_t size_hint_bytes; /* how long a new file will be; 0: unknown */
} archipelago_context;

#define ARCHIPELAGO_CONTEXT_INIT \
  { sizeof(archipelago_context), ARCHIPELAGO_CLASS_OTHER, -1, ARCHIPELAGO_FOR_READ, -1, 0, 0 }

/* Makes the calling thread carry a context along: it holds for files that the thread opens without one, and its reason
 * for the thread's reads whatever file they are of. So an engine marks a job once, where it begins. NULL ends it. */
int archipelago_thread_context(const archipelago_context *context);

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* Opens a file as open(2) does, with the same flags (O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_APPEND,
 * O_DIRECT, O_SYNC, O_DSYNC; O_CLOEXEC and O_NOATIME mean nothing; others are refused). A file that is opened for writing is
 * a new one: O_CREAT, or O_TRUNC, or one of length 0. `context` may be NULL: that of the thread, else an
 * ARCHIPELAGO_CLASS_OTHER. The context of a new file decides where it lies. Returns the number of the file. */
int archipelago_open(int tiers, const char *path, int flags, const archipelago_context *context);

/* Closes it. Does not sync. Calls that other threads have under way on it end as they would have. Closing the handle that
 * created a file ends its writing, whoever still reads it. */
int archipelago_close(int file);

/* Reads up to `count` bytes from where the last read ended; returns how many, fewer only at the end of the file, 0
 * there. After an error the bytes of `buffer` are undefined. */
int64_t archipelago_read(int file, void *buffer, size_t count);

/* The same at `offset`, without regard to other reads. */
int64_t archipelago_pread(int file, void *buffer, size_t count, uint64_t offset);

/* Appends all of `count` bytes; returns `count`. After an error other than EBADF or EINVAL, or EOPNOTSUPP of a write that is
 * not at the end, the file takes no more: how much of the bytes it has is unknown. */
int64_t archipelago_write(int file, const void *buffer, size_t count);

/* The same if the file is `offset` bytes long, else EOPNOTSUPP, and nothing has changed. */
int64_t archipelago_pwrite(int file, const void *buffer, size_t count, uint64_t offset);

/* Sets where the next archipelago_read() begins: `offset` from the beginning (SEEK_SET, 0), from there (SEEK_CUR, 1) or from the
 * end (SEEK_END, 2). Returns the place, from the beginning; EOVERFLOW if that is not an int64_t. Writes always go to the
 * end. */
int64_t archipelago_lseek(int file, int64_t offset, int whence);

/* Makes what was written survive power loss. Through a handle for reading only while another one is writing the
 * file, else EOPNOTSUPP. After an error the file takes no more writes or syncs. */
int archipelago_fsync(int file);

/* The same. */
int archipelago_fdatasync(int file);

/* Appends zeros until the file is `length` bytes long; EOPNOTSUPP if it is longer already. */
int archipelago_ftruncate(int file, uint64_t length);

/* What archipelago_stat() and archipelago_fstat() tell. */
typedef struct archipelago_stat_t {
  uint64_t size;        /* bytes; 0 of a directory */
  uint64_t file_id;     /* never used for another file of these tiers; 0 of a directory */
  uint64_t modified_ms; /* when it was written where it lies now, in milliseconds since 1970: a table that moves to another device is
                           written anew there; 0 of a directory or a file without a name, or if its device does not know or cannot be asked */
  int is_directory;     /* 0 or 1 */
  int file_class;       /* ARCHIPELAGO_CLASS_* */
  int level;            /* -1: none */
  int device;           /* its place in the list of devices, 0 for the fastest; -1 of a directory or a file without a name */
  uint32_t links;       /* names */
  uint32_t copies;      /* copies for reading on faster devices */
  int fastest_copy;     /* the fastest device with a copy, which may be of a part of the file; -1: none */
  int is_written;       /* 0 or 1: it is open for writing */
} archipelago_stat_t;

/* Tells about an open file. */
int archipelago_fstat(int file, archipelago_stat_t *stat);

/* Advice of archipelago_fadvise(). */
enum {
  ARCHIPELAGO_WILL_NEED = 0, /* the bytes are read soon */
  ARCHIPELAGO_WONT_NEED = 1  /* they are not: memory that caches them is better used otherwise */
};

/* Gives advice about `length` bytes at `offset` (0: all from there) of a file that is open for reading.
 * ARCHIPELAGO_WILL_NEED fails with EOPNOTSUPP where it does nothing, since reads go to the device past any cache (O_DIRECT, asked for by
 * the file or its device): whoever scans such a file reads ahead into memory of its own. */
int archipelago_fadvise(int file, uint64_t offset, uint64_t length, int advice);

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* Tells about a file or directory, and on which device it lies now. */
int archipelago_stat(int tiers, const char *path, archipelago_stat_t *stat);

/* 1 if there is a file or directory of that name, 0 if not. */
int archipelago_exists(int tiers, const char *path);

/* Removes a name; the file goes with its last name and the last handle that reads or writes it. What is written to it until
 * then is seen by those who read it. */
int archipelago_unlink(int tiers, const char *path);

/* Gives a file another name, in place of a file that has it, or a directory with all that lies in it, in place of an empty directory. All at
 * once: after a kill everything has the old name or the new one. Files that are open stay so. Errors: ENOENT; EISDIR for a file in place of a
 * directory; ENOTDIR or ENOTEMPTY for a directory in place of a file, or of one that is not empty; EINVAL for one that would lie in
 * itself; EBUSY for one in which a lock is held; EOPNOTSUPP for one with the log of a database of the Rust library, whose end is found by
 * the directory's name. */
int archipelago_rename(int tiers, const char *from, const char *to);

/* Gives a file one more name; EEXIST if it is taken. `to` may lie outside of the tiers: a closed file is then linked
 * there if its device is on the same file system, else EOPNOTSUPP: copy it. */
int archipelago_link(int tiers, const char *from, const char *to);

/* Makes a directory, durably, and those above it that are missing; EEXIST if the name is taken. */
int archipelago_mkdir(int tiers, const char *path);

/* Removes an empty directory; else ENOTEMPTY. */
int archipelago_rmdir(int tiers, const char *path);

/* Makes all changes of names so far survive power loss; `path` is any directory. */
int archipelago_fsync_dir(int tiers, const char *path);

/* An entry of a directory. */
typedef struct archipelago_dirent {
  uint64_t size; /* bytes; 0 of a directory */
  int is_directory;
  int reserved;
  char name[256]; /* within the directory; ends with a zero */
} archipelago_dirent;

/* Opens a directory for reading: what lies in it now, sorted by name. Returns its number. */
int archipelago_opendir(int tiers, const char *path);

/* The next entry: 1 if there was one, 0 at the end. */
int archipelago_readdir(int directory, archipelago_dirent *entry);

/* Ends it. */
int archipelago_closedir(int directory);

/* Tells that a table belongs to another level now without having been written anew (a trivial move): if its device is
 * too fast for that, it is moved in the background. An error other than of the arguments: it was not recorded. */
int archipelago_set_level(int tiers, const char *path, int level);

/* The same with the job that brought it there: the level, the family, and of a compaction the level that the table comes from, so
 * that a move out of L0 tells which level L0 goes to. `context` is not NULL unless the thread carries one. */
int archipelago_reassign(int tiers, const char *path, const archipelago_context *context);

/* Takes the lock of that name, a file that is made if it is missing, and returns its number; EBUSY if it is taken. */
int archipelago_lock(int tiers, const char *path);

/* Gives it back. The file stays. */
int archipelago_unlock(int lock);

#ifdef __cplusplus
}
#endif

#endif /* ARCHIPELAGO_TIERS_H */
