/* Tests every call of archipelago_tiers.h, with its errors. The argument is an empty directory. */
#include <archipelago_tiers.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(archipelago_device) == 56, "the layout of a device");
_Static_assert(sizeof(archipelago_options) == 24, "the layout of options");
_Static_assert(sizeof(archipelago_context) == 32, "the layout of a context");
_Static_assert(sizeof(archipelago_stat_t) == 56, "the layout of a stat");
_Static_assert(sizeof(archipelago_dirent) == 272, "the layout of an entry");

static void fail(int line, const char *what) {
  fprintf(stderr, "calls.c:%d: %s (errno %d; last error: %s)\n", line, what, errno, archipelago_last_error());
  exit(1);
}

#define IS(condition) \
  do { \
    if (!(condition)) fail(__LINE__, #condition); \
  } while (0)

/* Checks that the call fails with this errno and kind, and that its sentence contains the word. */
#define FAILS(call, number, kind, word) \
  do { \
    errno = 0; \
    IS((call) == -1); \
    IS(errno == (number)); \
    IS(archipelago_last_error_kind() == (kind)); \
    IS(strstr(archipelago_last_error(), (word)) != NULL); \
  } while (0)

#define INVALID ARCHIPELAGO_ERROR_INVALID_ARGUMENT

static char fast[512], slow[512], settings[512];

static int open_tiers(void) {
  archipelago_options options = ARCHIPELAGO_OPTIONS_INIT;
  archipelago_device devices[2] = {ARCHIPELAGO_DEVICE_INIT, ARCHIPELAGO_DEVICE_INIT};
  devices[0].path = fast;
  devices[0].name = "fast";
  devices[0].capacity_bytes = 64u << 20;
  devices[1].path = slow;
  devices[1].capacity_bytes = 1u << 30;
  options.fast_levels = 4;
  return archipelago_tiers_open(devices, 2, &options);
}

static void opening(const char *base) {
  archipelago_options options = ARCHIPELAGO_OPTIONS_INIT;
  archipelago_device wrong = ARCHIPELAGO_DEVICE_INIT;
  archipelago_device twice[2] = {ARCHIPELAGO_DEVICE_INIT, ARCHIPELAGO_DEVICE_INIT};
  int tiers;

  IS(archipelago_abi() == ARCHIPELAGO_ABI);
  IS(strchr(archipelago_version(), '.') != NULL);
  IS(archipelago_last_error_kind() == ARCHIPELAGO_ERROR_NONE);
  IS(strcmp(archipelago_last_error(), "") == 0);

  FAILS(archipelago_tiers_open(NULL, 0, NULL), EINVAL, INVALID, "0 devices");
  FAILS(archipelago_tiers_open(NULL, 2, NULL), EINVAL, INVALID, "NULL");
  FAILS(archipelago_tiers_open(&wrong, 99, NULL), EINVAL, INVALID, "at most 16");
  FAILS(archipelago_tiers_open(&wrong, 1, NULL), EINVAL, INVALID, "archipelago_device.path is NULL");
  twice[0].path = twice[1].path = base;
  FAILS(archipelago_tiers_open(twice, 2, NULL), EINVAL, INVALID, "that of another device too");
  {
    archipelago_device unmounted = ARCHIPELAGO_DEVICE_INIT;
    unmounted.path = slow;
    options.must_exist = 1;
    FAILS(archipelago_tiers_open(&unmounted, 1, &options), ENOENT, ARCHIPELAGO_ERROR_NOT_FOUND, "Are they mounted?");
    IS(access(slow, F_OK) < 0);
    options.must_exist = 0;
    options.group_access = 7;
    FAILS(archipelago_tiers_open(&unmounted, 1, &options), EINVAL, INVALID, "group_access is 7");
    options.group_access = ARCHIPELAGO_GROUP_READ;
    {
      struct stat made;
      char grouped[4096], device[4200];
      snprintf(grouped, sizeof grouped, "%s-group", slow);
      snprintf(device, sizeof device, "%s/DEVICE", grouped);
      unmounted.path = grouped;
      tiers = archipelago_tiers_open(&unmounted, 1, &options);
      IS(tiers >= 0);
      IS(stat(grouped, &made) == 0 && (made.st_mode & 0777) == 0750);
      IS(stat(device, &made) == 0 && (made.st_mode & 0777) == 0640);
      IS(archipelago_tiers_close(tiers) == 0);
    }
    options.group_access = ARCHIPELAGO_GROUP_NONE;
  }
  wrong.path = base;
  wrong.kind = 9;
  FAILS(archipelago_tiers_open(&wrong, 1, NULL), EINVAL, INVALID, "no kind 9");
  wrong.kind = ARCHIPELAGO_DEVICE_EMULATED;
  FAILS(archipelago_tiers_open(&wrong, 1, NULL), EINVAL, INVALID, "`spec`");
  wrong.size = 4;
  FAILS(archipelago_tiers_open(&wrong, 1, NULL), EINVAL, INVALID, "ARCHIPELAGO_DEVICE_INIT");
  options.size = 3;
  FAILS(archipelago_tiers_open(twice, 2, &options), EINVAL, INVALID, "ARCHIPELAGO_OPTIONS_INIT");
  options.size = sizeof options;
  options.root = "a/../b";
  FAILS(archipelago_tiers_open(twice, 1, &options), EINVAL, INVALID, "..");
  options.fast_levels = 64;
  FAILS(archipelago_tiers_open(twice, 1, &options), EINVAL, INVALID, "level 64");
  FAILS(archipelago_tiers_open_file(NULL, NULL), EINVAL, INVALID, "settings is NULL");
  FAILS(archipelago_tiers_open_file("/nowhere/at/all.toml", NULL), ENOENT, ARCHIPELAGO_ERROR_NOT_FOUND, "all.toml");

  tiers = open_tiers();
  IS(tiers > 0);
  FAILS(open_tiers(), EBUSY, ARCHIPELAGO_ERROR_BUSY, "fast");
  IS(archipelago_tiers_close(tiers) == 0);
  FAILS(archipelago_tiers_close(tiers), EBADF, INVALID, "not an open tiers");
  FAILS(archipelago_exists(tiers, "tiers:/x"), EBADF, INVALID, "not an open tiers");
}

static void directories(int tiers) {
  archipelago_stat_t stat;
  archipelago_dirent entry;
  int dir, file;

  IS(archipelago_mkdir(tiers, "tiers:/db/inner") == 0);
  FAILS(archipelago_mkdir(tiers, "tiers:/db"), EEXIST, ARCHIPELAGO_ERROR_IO, "tiers:/db");
  FAILS(archipelago_mkdir(tiers, "/elsewhere"), EINVAL, INVALID, "begin with tiers:");
  IS(archipelago_exists(tiers, "tiers:/db") == 1);
  IS(archipelago_exists(tiers, "tiers:/none") == 0);
  FAILS(archipelago_exists(tiers, NULL), EINVAL, INVALID, "path is NULL");
  FAILS(archipelago_exists(tiers, ""), EINVAL, INVALID, "path is empty");
  IS(archipelago_stat(tiers, "tiers:/db", &stat) == 0);
  IS(stat.is_directory == 1 && stat.device == -1 && stat.size == 0);
  FAILS(archipelago_rmdir(tiers, "tiers:/db"), ENOTEMPTY, ARCHIPELAGO_ERROR_IO, "tiers:/db");
  FAILS(archipelago_rmdir(tiers, "tiers:/none"), ENOENT, ARCHIPELAGO_ERROR_NOT_FOUND, "none");
  IS(archipelago_fsync_dir(tiers, "tiers:/db") == 0);
  FAILS(archipelago_fsync_dir(tiers, "tiers:/none"), ENOENT, ARCHIPELAGO_ERROR_NOT_FOUND, "none");

  dir = archipelago_opendir(tiers, "tiers:/db");
  IS(dir > 0);
  IS(archipelago_readdir(dir, &entry) == 1);
  IS(strcmp(entry.name, "inner") == 0 && entry.is_directory == 1);
  IS(archipelago_readdir(dir, &entry) == 0);
  FAILS(archipelago_tiers_close(tiers), EBUSY, ARCHIPELAGO_ERROR_BUSY, "still open");
  IS(archipelago_closedir(dir) == 0);
  FAILS(archipelago_readdir(dir, &entry), EBADF, INVALID, "not an open directory");
  FAILS(archipelago_closedir(dir), EBADF, INVALID, "not an open directory");
  FAILS(archipelago_opendir(tiers, "tiers:/none"), ENOENT, ARCHIPELAGO_ERROR_NOT_FOUND, "none");
  IS(archipelago_rmdir(tiers, "tiers:/db/inner") == 0);

  /* A listing has the bytes of each name, also if they are not UTF-8. */
  file = archipelago_open(tiers, "tiers:/db/\xff", O_WRONLY | O_CREAT, NULL);
  IS(file > 0 && archipelago_write(file, "ab", 2) == 2 && archipelago_close(file) == 0);
  dir = archipelago_opendir(tiers, "tiers:/db");
  IS(dir > 0 && archipelago_readdir(dir, &entry) == 1);
  IS(strcmp(entry.name, "\xff") == 0 && entry.is_directory == 0 && entry.size == 2);
  IS(archipelago_readdir(dir, &entry) == 0 && archipelago_closedir(dir) == 0);
  IS(archipelago_unlink(tiers, "tiers:/db/\xff") == 0);
}

/* A renamed directory keeps its contents, also a file that is being written, and open handles go
 * on. */
static void renamed_directories(int tiers) {
  archipelago_stat_t stat;
  archipelago_dirent entry;
  char bytes[16];
  int file, lock, dir;

  IS(archipelago_mkdir(tiers, "tiers:/db/a/b") == 0 && archipelago_mkdir(tiers, "tiers:/db/full/x") == 0);
  file = archipelago_open(tiers, "tiers:/db/a/b/1.log", O_RDWR | O_CREAT, NULL);
  IS(file > 0 && archipelago_write(file, "one,", 4) == 4);
  FAILS(archipelago_rename(tiers, "tiers:/db/a", "tiers:/db/full"), ENOTEMPTY, ARCHIPELAGO_ERROR_IO, "full");
  FAILS(archipelago_rename(tiers, "tiers:/db/a", "tiers:/db/a/b/c"), EINVAL, INVALID, "lies in the directory itself");
  FAILS(archipelago_rename(tiers, "tiers:/db/full", "tiers:/db/a/b/1.log"), ENOTDIR, ARCHIPELAGO_ERROR_IO, "is a file");
  FAILS(archipelago_rename(tiers, "tiers:/db/a/b/1.log", "tiers:/db/full"), EISDIR, ARCHIPELAGO_ERROR_IO, "db/full");
  FAILS(archipelago_rename(tiers, "tiers:/db/none", "tiers:/db/n"), ENOENT, ARCHIPELAGO_ERROR_NOT_FOUND, "none");
  FAILS(archipelago_rename(tiers, "tiers:", "tiers:/db/n"), EINVAL, INVALID, "root");
  FAILS(archipelago_rename(tiers, "tiers:/db/a", "/elsewhere"), EINVAL, INVALID, "begin with tiers:");
  lock = archipelago_lock(tiers, "tiers:/db/a/LOCK");
  IS(lock > 0);
  FAILS(archipelago_rename(tiers, "tiers:/db/a", "tiers:/db/c"), EBUSY, ARCHIPELAGO_ERROR_BUSY, "a/LOCK");
  IS(archipelago_unlock(lock) == 0 && archipelago_unlink(tiers, "tiers:/db/a/LOCK") == 0);

  IS(archipelago_mkdir(tiers, "tiers:/db/c") == 0);
  IS(archipelago_rename(tiers, "tiers:/db/./a/", "tiers:/db//c") == 0);
  IS(archipelago_exists(tiers, "tiers:/db/a") == 0);
  IS(archipelago_write(file, "two", 3) == 3);
  IS(archipelago_stat(tiers, "tiers:/db/c/b/1.log", &stat) == 0 && stat.size == 7);
  IS(archipelago_pread(file, bytes, sizeof bytes, 0) == 7 && memcmp(bytes, "one,two", 7) == 0);
  /* A listing shows the number of appended bytes, even if the device has reserved more. */
  dir = archipelago_opendir(tiers, "tiers:/db/c/b");
  IS(dir > 0 && archipelago_readdir(dir, &entry) == 1 && strcmp(entry.name, "1.log") == 0 && entry.size == 7);
  IS(archipelago_closedir(dir) == 0);
  /* The time is that of the system's clock. */
  IS(stat.modified_ms / 1000 + 60 >= (uint64_t)time(NULL) && stat.modified_ms / 1000 <= (uint64_t)time(NULL) + 60);
  IS(archipelago_stat(tiers, "tiers:/db/c", &stat) == 0 && stat.modified_ms == 0);
  IS(archipelago_close(file) == 0);
  IS(archipelago_unlink(tiers, "tiers:/db/c/b/1.log") == 0);
  IS(archipelago_rmdir(tiers, "tiers:/db/c/b") == 0 && archipelago_rmdir(tiers, "tiers:/db/c") == 0);
  IS(archipelago_rmdir(tiers, "tiers:/db/full/x") == 0 && archipelago_rmdir(tiers, "tiers:/db/full") == 0);
}

static void write_all(int file, const char *text) {
  IS(archipelago_write(file, text, strlen(text)) == (int64_t)strlen(text));
}

/* A handle that still reads a log of 10,000 bytes does not keep the log open for writing. */
static void is_closed_though_read(int tiers, int reader) {
  archipelago_stat_t stat;
  char bytes[8];
  IS(archipelago_stat(tiers, "tiers:/db/2.log", &stat) == 0);
  IS(stat.size == 10000 && stat.is_written == 0);
  IS(archipelago_fstat(reader, &stat) == 0);
  IS(stat.size == 10000 && stat.is_written == 0 && stat.device == 0);
  IS(archipelago_pread(reader, bytes, sizeof bytes, 9996) == 4);
  FAILS(archipelago_fsync(reader), EOPNOTSUPP, ARCHIPELAGO_ERROR_UNSUPPORTED, "reading only");
  IS(archipelago_close(reader) == 0);
}

static void a_log(int tiers) {
  archipelago_context context = ARCHIPELAGO_CONTEXT_INIT;
  archipelago_stat_t stat;
  char bytes[64];
  int log, reader;

  context.file_class = ARCHIPELAGO_CLASS_LOG;
  context.reason = ARCHIPELAGO_FOR_WRITE;
  context.size_hint_bytes = 1 << 16;
  log = archipelago_open(tiers, "tiers:/db/1.log", O_RDWR | O_CREAT | O_EXCL, &context);
  IS(log > 0);
  FAILS(archipelago_open(tiers, "tiers:/db/1.log", O_WRONLY | O_CREAT | O_EXCL, NULL), EEXIST, ARCHIPELAGO_ERROR_IO,
        "1.log");
  write_all(log, "one,");
  reader = archipelago_open(tiers, "tiers:/db/1.log", O_RDONLY, &context);
  IS(reader > 0);
  IS(archipelago_read(reader, bytes, sizeof bytes) == 4);
  IS(archipelago_read(reader, bytes, sizeof bytes) == 0);

  /* Appended bytes are visible immediately to the writer's handle and to others, also after a
   * rename. */
  IS(archipelago_pwrite(log, "two,", 4, 4) == 4);
  IS(archipelago_read(reader, bytes, sizeof bytes) == 4 && memcmp(bytes, "two,", 4) == 0);
  IS(archipelago_rename(tiers, "tiers:/db/1.log", "tiers:/db/2.log") == 0);
  write_all(log, "three");
  IS(archipelago_read(reader, bytes, sizeof bytes) == 5 && memcmp(bytes, "three", 5) == 0);
  IS(archipelago_pread(log, bytes, 3, 4) == 3 && memcmp(bytes, "two", 3) == 0);
  IS(archipelago_lseek(log, -5, SEEK_END) == 8);
  IS(archipelago_read(log, bytes, 2) == 2 && memcmp(bytes, "th", 2) == 0);
  IS(archipelago_lseek(log, 1, SEEK_CUR) == 11);
  IS(archipelago_lseek(log, 4, SEEK_SET) == 4);
  FAILS(archipelago_lseek(log, -5, SEEK_SET), EINVAL, INVALID, "before the beginning");
  FAILS(archipelago_lseek(log, 0, 7), EINVAL, INVALID, "seek from 7");
  IS(archipelago_lseek(log, INT64_MAX, SEEK_SET) == INT64_MAX);
  FAILS(archipelago_lseek(log, 1, SEEK_CUR), EOVERFLOW, INVALID, "farther than");
  IS(archipelago_lseek(log, 0, SEEK_CUR) == INT64_MAX);
  IS(archipelago_read(log, bytes, sizeof bytes) == 0);

  /* A file can only be written from front to back. */
  FAILS(archipelago_pwrite(log, "x", 1, 2), EOPNOTSUPP, ARCHIPELAGO_ERROR_UNSUPPORTED, "front to back");
  FAILS(archipelago_pwrite(log, "x", 1, 99), EOPNOTSUPP, ARCHIPELAGO_ERROR_UNSUPPORTED, "13 bytes");
  IS(archipelago_write(log, "", 0) == 0);
  FAILS(archipelago_ftruncate(log, 3), EOPNOTSUPP, ARCHIPELAGO_ERROR_UNSUPPORTED, "cut to 3");
  IS(archipelago_ftruncate(log, 13) == 0);
  IS(archipelago_ftruncate(log, 10000) == 0);
  IS(archipelago_pread(log, bytes, 4, 9996) == 4 && memcmp(bytes, "\0\0\0\0", 4) == 0);
  FAILS(archipelago_write(log, NULL, 3), EINVAL, INVALID, "NULL");
  FAILS(archipelago_write(reader, "x", 1), EBADF, INVALID, "not open for writing");

  IS(archipelago_fsync(log) == 0);
  IS(archipelago_fdatasync(log) == 0);
  IS(archipelago_fsync(reader) == 0);
  IS(archipelago_fstat(log, &stat) == 0);
  IS(stat.size == 10000 && stat.device == 0 && stat.file_class == ARCHIPELAGO_CLASS_LOG);
  IS(stat.is_written == 1 && stat.links == 1 && stat.level == -1);
  FAILS(archipelago_fstat(log, NULL), EINVAL, INVALID, "NULL");
  IS(archipelago_close(log) == 0);
  FAILS(archipelago_close(log), EBADF, INVALID, "not an open file");
  FAILS(archipelago_write(log, "x", 1), EBADF, INVALID, "not an open file");
  FAILS(archipelago_fdatasync(log), EBADF, INVALID, "not an open file");

  is_closed_though_read(tiers, reader);
}

/* Without O_TRUNC an open replaces a file only if it is empty and no handle writes it. */
static void empty_files(int tiers) {
  archipelago_stat_t before, after;
  int other, writer = archipelago_open(tiers, "tiers:/db/empty", O_WRONLY | O_CREAT, NULL);
  IS(writer > 0 && archipelago_stat(tiers, "tiers:/db/empty", &before) == 0);
  FAILS(archipelago_open(tiers, "tiers:/db/empty", O_WRONLY | O_CREAT, NULL), EBUSY, ARCHIPELAGO_ERROR_BUSY,
        "being written");
  FAILS(archipelago_open(tiers, "tiers:/db/empty", O_WRONLY, NULL), EBUSY, ARCHIPELAGO_ERROR_BUSY, "being written");
  IS(archipelago_stat(tiers, "tiers:/db/empty", &after) == 0 && after.file_id == before.file_id);
  write_all(writer, "x");
  FAILS(archipelago_open(tiers, "tiers:/db/empty", O_WRONLY, NULL), EOPNOTSUPP, ARCHIPELAGO_ERROR_UNSUPPORTED,
        "O_TRUNC");
  other = archipelago_open(tiers, "tiers:/db/empty", O_WRONLY | O_TRUNC, NULL);
  IS(other > 0 && archipelago_close(writer) == 0 && archipelago_close(other) == 0);
  IS(archipelago_stat(tiers, "tiers:/db/empty", &before) == 0 && before.size == 0);
  writer = archipelago_open(tiers, "tiers:/db/empty", O_WRONLY, NULL);
  IS(writer > 0 && archipelago_stat(tiers, "tiers:/db/empty", &after) == 0 && after.file_id != before.file_id);
  IS(archipelago_close(writer) == 0 && archipelago_unlink(tiers, "tiers:/db/empty") == 0);
  FAILS(archipelago_open(tiers, "tiers:/db/empty", O_WRONLY | O_TRUNC, NULL), ENOENT, ARCHIPELAGO_ERROR_NOT_FOUND,
        "empty");
}

/* A name has at most the 255 bytes that an entry of a directory has room for. */
static void long_names(int tiers) {
  char longest[300] = "tiers:/long/", too_long[400], below[500];
  archipelago_dirent entry;
  int file, dir;
  memset(longest + strlen(longest), 'n', 255);
  snprintf(too_long, sizeof too_long, "%sn", longest);
  snprintf(below, sizeof below, "%s/x", too_long);
  IS(archipelago_mkdir(tiers, "tiers:/long") == 0);
  file = archipelago_open(tiers, longest, O_WRONLY | O_CREAT, NULL);
  IS(file > 0 && archipelago_close(file) == 0);
  FAILS(archipelago_open(tiers, too_long, O_WRONLY | O_CREAT, NULL), ENAMETOOLONG, INVALID, "longer than 255");
  FAILS(archipelago_rename(tiers, longest, too_long), ENAMETOOLONG, INVALID, "longer than 255");
  FAILS(archipelago_rename(tiers, "tiers:/long", too_long), ENAMETOOLONG, INVALID, "longer than 255");
  FAILS(archipelago_link(tiers, longest, too_long), ENAMETOOLONG, INVALID, "longer than 255");
  FAILS(archipelago_mkdir(tiers, too_long), ENAMETOOLONG, INVALID, "longer than 255");
  FAILS(archipelago_mkdir(tiers, below), ENAMETOOLONG, INVALID, "longer than 255");
  FAILS(archipelago_lock(tiers, too_long), ENAMETOOLONG, INVALID, "longer than 255");
  dir = archipelago_opendir(tiers, "tiers:/long");
  IS(dir > 0 && archipelago_readdir(dir, &entry) == 1 && strcmp(entry.name, strrchr(longest, '/') + 1) == 0);
  IS(archipelago_readdir(dir, &entry) == 0 && archipelago_closedir(dir) == 0);
  IS(archipelago_unlink(tiers, longest) == 0 && archipelago_rmdir(tiers, "tiers:/long") == 0);
}

static void not_opened(int tiers) {
  archipelago_context context = ARCHIPELAGO_CONTEXT_INIT;
  context.file_class = ARCHIPELAGO_CLASS_LOG;
  FAILS(archipelago_open(tiers, "tiers:/db/2.log", O_WRONLY | O_APPEND, NULL), EOPNOTSUPP,
        ARCHIPELAGO_ERROR_UNSUPPORTED, "O_TRUNC");
  FAILS(archipelago_open(tiers, "tiers:/db/none", O_RDONLY, NULL), ENOENT, ARCHIPELAGO_ERROR_NOT_FOUND, "none");
  FAILS(archipelago_open(tiers, "tiers:/db/none", O_WRONLY, NULL), ENOENT, ARCHIPELAGO_ERROR_NOT_FOUND, "none");
  FAILS(archipelago_open(tiers, "tiers:/db", O_RDONLY, NULL), EISDIR, ARCHIPELAGO_ERROR_IO, "tiers:/db");
  FAILS(archipelago_open(tiers, "tiers:/db", O_WRONLY | O_CREAT | O_EXCL, NULL), EEXIST, ARCHIPELAGO_ERROR_IO,
        "tiers:/db");
  FAILS(archipelago_open(tiers, "tiers:/no/dir", O_WRONLY | O_CREAT, NULL), ENOENT, ARCHIPELAGO_ERROR_NOT_FOUND,
        "dir");
  FAILS(archipelago_mkdir(tiers, "tiers:/db/2.log/x"), ENOTDIR, ARCHIPELAGO_ERROR_IO, "is a file");
  FAILS(archipelago_open(tiers, "/etc/passwd", O_RDONLY, NULL), EINVAL, INVALID, "begin with tiers:");
  FAILS(archipelago_open(tiers, "tiers:/x", O_RDONLY | O_TRUNC, NULL), EINVAL, INVALID, "O_TRUNC");
  FAILS(archipelago_open(tiers, "tiers:/x", O_WRONLY | O_CREAT | O_NONBLOCK, NULL), EINVAL, INVALID, "open flags");
  FAILS(archipelago_open(tiers, NULL, O_RDONLY, NULL), EINVAL, INVALID, "path is NULL");
  context.level = 3;
  FAILS(archipelago_open(tiers, "tiers:/x", O_WRONLY | O_CREAT, &context), EINVAL, INVALID, "only tables");
}

/* Handles that have a file open see bytes that are appended after its last name was removed,
 * even if a new file has the name. */
static void without_a_name(int tiers) {
  archipelago_stat_t stat;
  char bytes[32];
  int reader, late, other, writer = archipelago_open(tiers, "tiers:/db/gone", O_WRONLY | O_CREAT | O_TRUNC, NULL);
  IS(writer > 0);
  write_all(writer, "one,");
  reader = archipelago_open(tiers, "tiers:/db/gone", O_RDONLY, NULL);
  late = archipelago_open(tiers, "tiers:/db/gone", O_RDONLY, NULL);
  IS(reader > 0 && late > 0);
  IS(archipelago_unlink(tiers, "tiers:/db/gone") == 0);
  write_all(writer, "two,");
  IS(archipelago_read(reader, bytes, sizeof bytes) == 8 && memcmp(bytes, "one,two,", 8) == 0);
  other = archipelago_open(tiers, "tiers:/db/gone", O_WRONLY | O_CREAT, NULL);
  IS(other > 0 && archipelago_write(other, "other", 5) == 5 && archipelago_close(other) == 0);
  write_all(writer, "three");
  IS(archipelago_fsync(late) == 0);
  IS(archipelago_close(writer) == 0);
  IS(archipelago_read(reader, bytes, sizeof bytes) == 5 && memcmp(bytes, "three", 5) == 0);
  IS(archipelago_read(late, bytes, sizeof bytes) == 13 && memcmp(bytes, "one,two,three", 13) == 0);
  IS(archipelago_fstat(late, &stat) == 0 && stat.size == 13 && stat.device == -1 && stat.links == 0);
  IS(archipelago_close(reader) == 0 && archipelago_close(late) == 0);
  IS(archipelago_unlink(tiers, "tiers:/db/gone") == 0);
}

static void write_table(int tiers, const char *path, const archipelago_context *context, char fill) {
  char *block = malloc(1 << 16);
  int part, table = archipelago_open(tiers, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, context);
  IS(table > 0 && block != NULL);
  memset(block, fill, 1 << 16);
  for (part = 0; part < 16; part++) IS(archipelago_write(table, block, 1 << 16) == 1 << 16);
  FAILS(archipelago_pread(table, block, 1, 0), EBADF, INVALID, "not open for reading");
  IS(archipelago_fsync(table) == 0);
  IS(archipelago_close(table) == 0);
  free(block);
}

static void tables(int tiers) {
  archipelago_context context = ARCHIPELAGO_CONTEXT_INIT;
  archipelago_stat_t stat;
  char bytes[64];
  uint64_t id;
  int old, tries;

  context.file_class = ARCHIPELAGO_CLASS_TABLE;
  context.reason = ARCHIPELAGO_FOR_FLUSH;
  context.level = 0;
  write_table(tiers, "tiers:/db/3.sst", &context, 'a');
  IS(archipelago_stat(tiers, "tiers:/db/3.sst", &stat) == 0);
  IS(stat.size == 1 << 20 && stat.device == 0 && stat.level == 0 && stat.is_written == 0);
  id = stat.file_id;

  /* A thread that carries a context makes its calls without one. */
  context.reason = ARCHIPELAGO_FOR_COMPACTION;
  context.level = 5;
  context.from_level = 4;
  IS(archipelago_thread_context(&context) == 0);
  write_table(tiers, "tiers:/db/4.sst", NULL, 'b');
  IS(archipelago_thread_context(NULL) == 0);
  IS(archipelago_stat(tiers, "tiers:/db/4.sst", &stat) == 0);
  IS(stat.device == 1 && stat.level == 5 && stat.file_class == ARCHIPELAGO_CLASS_TABLE && stat.file_id != id);
  context.level = 3;
  write_table(tiers, "tiers:/db/8.sst", &context, 'f');
  IS(archipelago_stat(tiers, "tiers:/db/8.sst", &stat) == 0);
  IS(stat.device == 0 && stat.level == 3);
  context.file_class = ARCHIPELAGO_CLASS_VALUES;
  FAILS(archipelago_thread_context(&context), EINVAL, INVALID, "only tables");
  context.reason = ARCHIPELAGO_FOR_GARBAGE;
  context.level = -1;
  write_table(tiers, "tiers:/db/8.blob", &context, 'v');
  IS(archipelago_stat(tiers, "tiers:/db/8.blob", &stat) == 0);
  IS(stat.device == 1 && stat.level == -1 && stat.file_class == ARCHIPELAGO_CLASS_VALUES);
  FAILS(archipelago_set_level(tiers, "tiers:/db/8.blob", 1), EINVAL, INVALID, "not a table");
  IS(archipelago_unlink(tiers, "tiers:/db/8.blob") == 0);
  context.file_class = ARCHIPELAGO_CLASS_TABLE;
  context.reason = ARCHIPELAGO_FOR_COMPACTION;
  write_table(tiers, "tiers:/db/5.bin", NULL, 'c');
  IS(archipelago_stat(tiers, "tiers:/db/5.bin", &stat) == 0);
  IS(stat.device == 0 && stat.file_class == ARCHIPELAGO_CLASS_OTHER);
  context.level = 99;
  FAILS(archipelago_thread_context(&context), EINVAL, INVALID, "level 99");

  /* A handle continues to read a file that was replaced or removed. */
  old = archipelago_open(tiers, "tiers:/db/4.sst", O_RDONLY | O_DIRECT, NULL);
  IS(old > 0);
  FAILS(archipelago_fsync(old), EOPNOTSUPP, ARCHIPELAGO_ERROR_UNSUPPORTED, "reading only");
  FAILS(archipelago_fadvise(old, 0, 4096, ARCHIPELAGO_WILL_NEED), EOPNOTSUPP, ARCHIPELAGO_ERROR_UNSUPPORTED, "O_DIRECT");
  IS(archipelago_fadvise(old, 0, 0, ARCHIPELAGO_WONT_NEED) == 0);
  FAILS(archipelago_fadvise(old, 0, 0, 5), EINVAL, INVALID, "no advice 5");
  context.level = 6;
  write_table(tiers, "tiers:/db/4.sst", &context, 'd');
  IS(archipelago_pread(old, bytes, 8, 100) == 8 && memcmp(bytes, "bbbbbbbb", 8) == 0);
  IS(archipelago_pread(old, bytes, 8, (1 << 20) - 3) == 3);
  IS(archipelago_pread(old, bytes, 8, 1 << 20) == 0);
  IS(archipelago_fstat(old, &stat) == 0);
  IS(stat.size == 1 << 20 && stat.device == -1 && stat.links == 0);
  IS(archipelago_close(old) == 0);

  IS(archipelago_link(tiers, "tiers:/db/3.sst", "tiers:/db/6.sst") == 0);
  FAILS(archipelago_link(tiers, "tiers:/db/3.sst", "tiers:/db/4.sst"), EEXIST, ARCHIPELAGO_ERROR_IO, "4.sst");
  FAILS(archipelago_link(tiers, "tiers:/db/none", "tiers:/db/7.sst"), ENOENT, ARCHIPELAGO_ERROR_NOT_FOUND, "none");
  IS(archipelago_unlink(tiers, "tiers:/db/3.sst") == 0);
  FAILS(archipelago_unlink(tiers, "tiers:/db/3.sst"), ENOENT, ARCHIPELAGO_ERROR_NOT_FOUND, "3.sst");
  IS(archipelago_stat(tiers, "tiers:/db/6.sst", &stat) == 0);
  IS(stat.file_id == id && stat.links == 1);
  FAILS(archipelago_stat(tiers, "tiers:/db/3.sst", &stat), ENOENT, ARCHIPELAGO_ERROR_NOT_FOUND, "3.sst");

  /* A trivial move: the tiers move the file to the device of its new level, and the caller
   * writes nothing. */
  IS(archipelago_set_level(tiers, "tiers:/db/6.sst", 0) == 0);
  IS(archipelago_set_level(tiers, "tiers:/db/6.sst", 5) == 0);
  for (tries = 0; tries < 1000; tries++) {
    IS(archipelago_stat(tiers, "tiers:/db/6.sst", &stat) == 0);
    IS(stat.level == 5);
    if (stat.device == 1) break;
    IS(nanosleep(&(struct timespec){0, 10000000}, NULL) == 0);
  }
  IS(stat.device == 1);
  /* A job says the family of a level, and the level into which L0 of the family compacts. A
   * level alone says neither. */
  {
    char text[8192];
    archipelago_context job = ARCHIPELAGO_CONTEXT_INIT;
    job.file_class = ARCHIPELAGO_CLASS_TABLE;
    job.reason = ARCHIPELAGO_FOR_COMPACTION;
    job.from_level = 0;
    job.level = 5;
    job.family = 9;
    IS(archipelago_stats(tiers, text, sizeof text) < (int64_t)sizeof text && strstr(text, "(L5 is the base)") == NULL);
    IS(archipelago_reassign(tiers, "tiers:/db/6.sst", &job) == 0);
    IS(archipelago_stats(tiers, text, sizeof text) < (int64_t)sizeof text && strstr(text, "(L5 is the base)") != NULL);
    FAILS(archipelago_reassign(tiers, "tiers:/db/5.bin", &job), EINVAL, INVALID, "not a table");
    job.level = -1;
    FAILS(archipelago_reassign(tiers, "tiers:/db/6.sst", &job), EINVAL, INVALID, "no level");
  }
  FAILS(archipelago_set_level(tiers, "tiers:/db/6.sst", -1), EINVAL, INVALID, "level -1");
  FAILS(archipelago_set_level(tiers, "tiers:/db/5.bin", 1), EINVAL, INVALID, "not a table");
  FAILS(archipelago_set_level(tiers, "tiers:/db/none", 1), ENOENT, ARCHIPELAGO_ERROR_NOT_FOUND, "none");
}

static void locks_and_reports(int tiers) {
  uint64_t bytes = 0;
  char text[8192], little[8];
  int64_t length;
  int lock = archipelago_lock(tiers, "tiers:/db/LOCK");

  IS(lock > 0);
  FAILS(archipelago_lock(tiers, "tiers:/db/LOCK"), EBUSY, ARCHIPELAGO_ERROR_BUSY, "locked");
  IS(archipelago_unlock(lock) == 0);
  FAILS(archipelago_unlock(lock), EBADF, INVALID, "not an open lock");
  lock = archipelago_lock(tiers, "tiers:/db/LOCK");
  IS(lock > 0 && archipelago_unlock(lock) == 0);

  IS(archipelago_free_bytes(tiers, &bytes) == 0);
  IS(bytes > (1u << 20) && bytes < (2u << 30));
  FAILS(archipelago_free_bytes(tiers, NULL), EINVAL, INVALID, "NULL");
  length = archipelago_stats(tiers, text, sizeof text);
  IS(length > 0 && length == (int64_t)strlen(text));
  IS(strstr(text, "fast") != NULL && strstr(text, "tier1") != NULL && strstr(text, "L5") != NULL);
  IS(archipelago_stats(tiers, NULL, 0) > 0);
  IS(archipelago_stats(tiers, little, sizeof little) >= (int64_t)sizeof little);
  IS(strlen(little) == sizeof little - 1 && memcmp(little, text, sizeof little - 1) == 0);
}

/* Many threads read one file while another file is written. Each thread sees its own errors. */
struct work {
  int tiers, file;
};

#define GROWS_TO 3000000

static void *reads(void *given) {
  struct work *work = given;
  char bytes[512];
  int round;
  IS(archipelago_last_error_kind() == ARCHIPELAGO_ERROR_NONE);
  for (round = 0; round < 2000; round++) {
    int64_t got = archipelago_pread(work->file, bytes, sizeof bytes, (uint64_t)(round * 509) % (1 << 20));
    IS(got > 0 && bytes[0] == 'd' && bytes[got - 1] == 'd');
  }
  FAILS(archipelago_stat(work->tiers, "tiers:/mine", NULL), ENOENT, ARCHIPELAGO_ERROR_NOT_FOUND, "mine");
  return NULL;
}

static void threads(int tiers) {
  pthread_t running[4];
  struct work work = {tiers, archipelago_open(tiers, "tiers:/db/4.sst", O_RDONLY, NULL)};
  archipelago_context context = ARCHIPELAGO_CONTEXT_INIT;
  int at;
  IS(work.file > 0);
  IS(archipelago_fadvise(work.file, 0, 4096, ARCHIPELAGO_WILL_NEED) == 0);
  IS(archipelago_fadvise(work.file, 0, 0, ARCHIPELAGO_WILL_NEED) == 0);
  context.file_class = ARCHIPELAGO_CLASS_TABLE;
  for (at = 0; at < 4; at++) IS(pthread_create(&running[at], NULL, reads, &work) == 0);
  for (at = 0; at < 8; at++) write_table(tiers, "tiers:/db/9.sst", &context, 'e');
  for (at = 0; at < 4; at++) IS(pthread_join(running[at], NULL) == 0);
  IS(archipelago_close(work.file) == 0);
}

/* Tables on a mapped or direct device may be longer for a moment while they are written. Readers
 * see only the appended bytes. */
static void *reads_what_grows(void *given) {
  struct work *work = given;
  char *bytes = malloc(1 << 16);
  archipelago_stat_t stat;
  archipelago_context context = ARCHIPELAGO_CONTEXT_INIT;
  int64_t at, got, end;
  IS(bytes != NULL);
  context.file_class = ARCHIPELAGO_CLASS_TABLE;
  do {
    int reader = archipelago_open(work->tiers, "tiers:/grows.sst", O_RDONLY, &context);
    IS(reader > 0);
    IS(archipelago_fstat(reader, &stat) == 0 && stat.size <= GROWS_TO);
    IS(archipelago_stat(work->tiers, "tiers:/grows.sst", &stat) == 0 && stat.size <= GROWS_TO);
    IS(archipelago_fadvise(reader, 0, 0, ARCHIPELAGO_WONT_NEED) == 0);
    end = archipelago_lseek(reader, 0, SEEK_END);
    IS(end <= GROWS_TO);
    got = archipelago_pread(reader, bytes, 1 << 16, end > 1000 ? end - 1000 : 0);
    IS(got >= (end > 1000 ? 1000 : end));
    for (at = 0; at < got; at++) IS(bytes[at] == 'g');
    IS(archipelago_close(reader) == 0);
  } while (end < GROWS_TO);
  free(bytes);
  return NULL;
}

static void growing(const char *base, int kind) {
  archipelago_device device = ARCHIPELAGO_DEVICE_INIT;
  archipelago_context context = ARCHIPELAGO_CONTEXT_INIT;
  pthread_t running[2];
  struct work work;
  char path[600], piece[5000];
  int at, table;
  snprintf(path, sizeof path, "%s/grows%d", base, kind);
  memset(piece, 'g', sizeof piece);
  device.path = path;
  device.kind = kind;
  work.tiers = archipelago_tiers_open(&device, 1, NULL);
  IS(work.tiers > 0);
  context.file_class = ARCHIPELAGO_CLASS_TABLE;
  table = archipelago_open(work.tiers, "tiers:/grows.sst", O_WRONLY | O_CREAT, &context);
  IS(table > 0);
  for (at = 0; at < 2; at++) IS(pthread_create(&running[at], NULL, reads_what_grows, &work) == 0);
  for (at = 0; at < GROWS_TO; at += sizeof piece) IS(archipelago_write(table, piece, sizeof piece) == sizeof piece);
  IS(archipelago_close(table) == 0);
  for (at = 0; at < 2; at++) IS(pthread_join(running[at], NULL) == 0);
  IS(archipelago_tiers_close(work.tiers) == 0);
}

/* All files exist after the tiers were closed and opened from a settings file. */
static void again(void) {
  archipelago_stat_t stat;
  char bytes[16];
  int file, tiers;
  FILE *out = fopen(settings, "w");
  IS(out != NULL);
  fprintf(out,
          "[server]\nport = 1\n[[tiers]]\npath = \"%s\"\nname = \"fast\"\n[[tiers]]\npath = \"%s\"\n", fast, slow);
  IS(fclose(out) == 0);
  {
    archipelago_options other = ARCHIPELAGO_OPTIONS_INIT;
    other.root = "/elsewhere";
    tiers = archipelago_tiers_open_file(settings, &other);
    IS(tiers > 0);
    IS(archipelago_exists(tiers, "/elsewhere") == 1);
    IS(archipelago_exists(tiers, "/elsewhere/db") == 0);
    IS(archipelago_tiers_close(tiers) == 0);
  }
  tiers = archipelago_tiers_open_file(settings, NULL);
  IS(tiers > 0);
  IS(archipelago_stat(tiers, "tiers:/db/6.sst", &stat) == 0);
  IS(stat.level == 5 && stat.device == 1 && stat.size == 1 << 20);
  file = archipelago_open(tiers, "tiers:/db/2.log", O_RDONLY, NULL);
  IS(file > 0 && archipelago_read(file, bytes, 13) == 13 && memcmp(bytes, "one,two,three", 13) == 0);
  FAILS(archipelago_fsync(file), EOPNOTSUPP, ARCHIPELAGO_ERROR_UNSUPPORTED, "reading only");
  FAILS(archipelago_tiers_close(tiers), EBUSY, ARCHIPELAGO_ERROR_BUSY, "1 files");
  IS(archipelago_close(file) == 0);
  IS(archipelago_tiers_close(tiers) == 0);

  out = fopen(settings, "w");
  IS(out != NULL && fputs("tiers = 3\n", out) > 0 && fclose(out) == 0);
  FAILS(archipelago_tiers_open_file(settings, NULL), EINVAL, INVALID, "settings.toml");
}

int main(int count, char **arguments) {
  int tiers;
  IS(count == 2);
  snprintf(fast, sizeof fast, "%s/fast", arguments[1]);
  snprintf(slow, sizeof slow, "%s/slow", arguments[1]);
  snprintf(settings, sizeof settings, "%s/settings.toml", arguments[1]);
  opening(arguments[1]);
  tiers = open_tiers();
  IS(tiers > 0);
  directories(tiers);
  renamed_directories(tiers);
  a_log(tiers);
  not_opened(tiers);
  empty_files(tiers);
  long_names(tiers);
  without_a_name(tiers);
  tables(tiers);
  locks_and_reports(tiers);
  threads(tiers);
  IS(archipelago_tiers_close(tiers) == 0);
  again();
  growing(arguments[1], ARCHIPELAGO_DEVICE_MAPPED);
  growing(arguments[1], ARCHIPELAGO_DEVICE_DIRECT);
  puts("every call does what the header says");
  return 0;
}
