//! What db_bench 7.8 has beside the flags of this program: names only, to answer well.

/// Flags that are accepted and have no effect: they tune or print what works in another way here,
/// and scripts for db_bench give them out of habit.
const WITHOUT_MEANING: &[&str] = &[
    "adaptive_readahead", "allow_concurrent_memtable_write", "async_io", "block_restart_interval",
    "bytes_per_sync", "cache_index_and_filter_blocks", "cache_numshardbits", "cache_type",
    "checksum_type", "compaction_pri", "compaction_readahead_size", "confidence_interval_only",
    "delayed_write_rate", "dump_malloc_stats", "enable_pipelined_write",
    "enable_write_thread_adaptive_yield", "format_version", "hard_pending_compaction_bytes_limit",
    "index_type", "level_compaction_dynamic_level_bytes", "max_background_compactions",
    "max_background_flushes", "max_bytes_for_level_multiplier", "max_compaction_bytes",
    "memtable_bloom_size_ratio", "memtable_use_huge_page", "memtablerep", "metadata_block_size",
    "min_level_to_compress", "mix_accesses", "mix_ave_kv_size", "multiread_batched",
    "multiread_stride", "num_high_pri_threads", "num_levels", "num_low_pri_threads",
    "optimize_filters_for_hits", "partition_index_and_filters", "perf_level",
    "pin_l0_filter_and_index_blocks_in_cache", "progress_reports", "report_bg_io_stats",
    "report_open_timing", "skip_list_lookahead", "soft_pending_compaction_bytes_limit",
    "stats_dump_period_sec", "stats_interval", "stats_interval_seconds", "stats_level",
    "stats_per_interval", "subcompactions", "unordered_write", "use_data_block_hash_index",
    "verify_checksum", "wal_bytes_per_sync", "whole_key_filtering", "write_thread_max_yield_usec",
    "write_thread_slow_yield_usec",
];

/// Flags that ask for what does not exist here: refused with an error that says so.
const REFUSED: &[&str] = &[
    "advise_random_on_open", "allow_data_in_errors", "arena_block_size", "auto_prefix_mode",
    "avoid_flush_during_recovery", "backup_dir", "backup_rate_limit", "blob_cache_numshardbits",
    "blob_cache_size", "blob_compaction_readahead_size", "blob_compression_type",
    "blob_db_bytes_per_sync", "blob_db_compression_type", "blob_db_enable_gc", "blob_db_file_size",
    "blob_db_gc_cutoff", "blob_db_is_fifo", "blob_db_max_db_size", "blob_db_max_ttl_range",
    "blob_db_min_blob_size", "blob_db_ttl_range_secs", "blob_file_size",
    "blob_file_starting_level", "blob_garbage_collection_age_cutoff",
    "blob_garbage_collection_force_threshold", "block_align", "block_cache_trace_file",
    "block_cache_trace_max_trace_file_size_in_bytes", "block_cache_trace_sampling_frequency",
    "bloom_locality", "build_info", "cache_high_pri_pool_ratio", "cache_low_pri_pool_ratio",
    "charge_blob_cache", "charge_compression_dictionary_building_buffer", "charge_file_metadata",
    "charge_filter_construction", "charge_table_reader", "check_flush_compaction_key_order",
    "column_family_distribution", "compaction_fadvice", "compaction_style",
    "compressed_cache_size", "compressed_secondary_cache_compression_type",
    "compressed_secondary_cache_high_pri_pool_ratio",
    "compressed_secondary_cache_low_pri_pool_ratio", "compressed_secondary_cache_numshardbits",
    "compressed_secondary_cache_size", "compression_level", "compression_max_dict_buffer_bytes",
    "compression_max_dict_bytes", "compression_parallel_threads",
    "compression_use_zstd_dict_trainer", "compression_zstd_max_train_bytes",
    "cost_write_buffer_to_cache", "cuckoo_hash_ratio", "data_block_hash_table_util_ratio",
    "db_write_buffer_size", "delete_obsolete_files_period_micros", "deletepercent",
    "disable_auto_compactions", "disable_seek_compaction", "disposable_entries_batch_size",
    "disposable_entries_delete_delay", "disposable_entries_value_size", "enable_blob_files",
    "enable_blob_garbage_collection", "enable_cpu_prio", "enable_index_compression",
    "enable_io_prio", "enable_numa", "env_uri", "expand_range_tombstones",
    "experimental_mempurge_threshold", "expire_style", "fifo_age_for_warm",
    "fifo_compaction_allow_compaction", "fifo_compaction_max_table_files_size_mb",
    "fifo_compaction_ttl", "file_checksum", "file_opening_threads", "finish_after_writes",
    "force_consistency_checks", "fs_uri", "hash_bucket_count", "identity_as_first_hash",
    "index_block_restart_interval", "index_shortening_mode", "index_with_first_key",
    "initial_auto_readahead_size", "inplace_update_num_locks", "inplace_update_support",
    "io_uring_enabled", "key_id_range", "log_readahead_size", "manual_wal_flush",
    "max_auto_readahead_size", "max_bytes_for_level_multiplier_additional",
    "max_num_range_tombstones", "max_scan_distance", "max_successive_merges", "max_total_wal_size",
    "max_write_buffer_number_to_maintain", "max_write_buffer_size_to_maintain",
    "memtable_insert_with_hint_prefix_size", "memtable_protection_bytes_per_key",
    "memtable_whole_key_filtering", "merge_keys", "merge_operator", "mergereadpercent",
    "min_blob_size", "min_write_buffer_number_to_merge", "mmap_read", "mmap_write",
    "num_bottom_pri_threads", "num_column_families", "num_deletion_threads",
    "num_file_reads_for_auto_readahead", "num_hot_column_families", "num_multi_db", "numdistinct",
    "optimistic_transaction_db", "optimize_filters_for_memory", "optimize_multiget_for_io",
    "options_file", "overwrite_probability", "overwrite_window_size", "paranoid_checks",
    "partition_index", "periodic_compaction_seconds", "persist_stats_to_disk",
    "persistent_entries_batch_size", "persistent_entries_value_size",
    "pin_top_level_index_and_filter", "preclude_last_level_data_seconds", "prefix_same_as_start",
    "prepopulate_blob_cache", "prepopulate_block_cache", "preserve_internal_time_seconds",
    "print_malloc_stats", "random_access_max_buffer_size", "range_tombstone_width",
    "rate_limit_auto_wal_flush", "rate_limit_bg_reads", "rate_limit_user_ops",
    "rate_limiter_auto_tuned", "rate_limiter_refill_period_us", "read_amp_bytes_per_bit",
    "read_cache_direct_read", "read_cache_direct_write", "read_cache_path", "read_cache_size",
    "read_with_latest_user_timestamp", "readahead_size", "readonly", "report_file_operations",
    "restore_dir", "restore_rate_limit", "row_cache_size", "sample_for_compression",
    "secondary_cache_uri", "secondary_path", "secondary_update_interval", "seek_missing_prefix",
    "show_table_properties", "simcache_size", "simulate_hdd", "simulate_hybrid_fs_file",
    "simulate_hybrid_hdd_multipliers", "sine_write_rate", "sine_write_rate_interval_milliseconds",
    "slow_usecs", "statistics_string", "stats_history_buffer_size", "stats_persist_period_sec",
    "stddev", "table_cache_numshardbits", "target_file_size_multiplier",
    "thread_status_per_interval", "time_range", "total_order_seek", "trace_file",
    "trace_replay_fast_forward", "trace_replay_threads", "track_and_verify_wals_in_manifest",
    "transaction_db", "transaction_lock_timeout", "transaction_set_snapshot", "transaction_sets",
    "transaction_sleep", "truth_db", "ttl_seconds", "universal_allow_trivial_move",
    "universal_compression_size_percent", "universal_incremental", "universal_max_merge_width",
    "universal_max_size_amplification_percent", "universal_min_merge_width",
    "universal_size_ratio", "use_adaptive_mutex", "use_blob_cache", "use_blob_db",
    "use_cache_jemalloc_no_dump_allocator", "use_cache_memkind_kmem_allocator",
    "use_compressed_secondary_cache", "use_cuckoo_table", "use_existing_keys", "use_fsync",
    "use_hash_search", "use_keep_filter", "use_plain_table", "use_ribbon_filter",
    "use_secondary_db", "use_shared_block_and_blob_cache", "use_single_deletes",
    "use_stderr_info_logger", "use_tailing_iterator", "use_uint64_comparator",
    "user_timestamp_size", "value_size_distribution_type", "value_size_max", "value_size_min",
    "wal_compression", "wal_dir", "wal_size_limit_MB", "wal_ttl_seconds",
    "writable_file_max_buffer_size", "write_batch_protection_bytes_per_key",
    "writes_before_delete_range", "writes_per_range_tombstone",
];

/// Flags of this program that db_bench does not have.
pub(crate) const OURS_ONLY: &[&str] = &[
    "buckets", "json", "keyrange_random", "ycsb_distribution", "ycsb_max_scan", "ycsb_theta",
];

/// Whether the flag is accepted without effect.
pub(super) fn is_without_meaning(name: &str) -> bool {
    WITHOUT_MEANING.contains(&name)
}

/// Whether db_bench has this flag and this program does not.
pub(super) fn is_of_db_bench(name: &str) -> bool {
    let name = name.split('=').next().unwrap_or(name);
    REFUSED.contains(&name) || REFUSED.contains(&name.strip_prefix("no").unwrap_or(name))
}
