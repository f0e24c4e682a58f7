//! Metrics of the Redis server. Static data.

use super::metrics;

metrics! {
    /// Number of connected clients.
    CLIENTS: Gauge "archipelago_redis_clients" [];
    /// Highest number of clients that may be connected.
    CLIENTS_MAX: Gauge "archipelago_redis_clients_limit" [];
    /// Highest number of clients that were connected at the same time.
    CLIENTS_PEAK: Gauge "archipelago_redis_clients_peak" [];
    /// Bytes of the largest buffer of a client, by `direction`: input (a request that is arriving)
    /// or output (replies that the client has not read).
    LARGEST_BUFFER: Gauge "archipelago_redis_largest_client_buffer_bytes" ["direction"];
    /// Number of clients that watch keys.
    WATCHING: Gauge "archipelago_redis_watching_clients" [];
    /// Sum of the numbers of keys that clients watch.
    WATCHED: Gauge "archipelago_redis_watched_keys" [];
    /// Number of clients that track keys.
    TRACKING: Gauge "archipelago_redis_tracking_clients" [];
    /// Number of keys that the server remembers for clients that track them.
    TRACKED_KEYS: Gauge "archipelago_redis_tracked_keys" [];
    /// Number of pairs of a tracked key and a client that tracks it.
    TRACKED_ITEMS: Gauge "archipelago_redis_tracked_items" [];
    /// Number of prefixes that clients track.
    TRACKED_PREFIXES: Gauge "archipelago_redis_tracked_prefixes" [];
    /// Number of connections that the server accepted.
    CONNECTIONS: Counter "archipelago_redis_connections" [];
    /// Number of connections that the server refused because of its limit of clients.
    REJECTED_CONNECTIONS: Counter "archipelago_redis_rejected_connections" [];
    /// Number of clients that were closed because they left too much output unread.
    OUTPUT_LIMIT: Counter "archipelago_redis_output_limit_disconnections" [];
    /// Bytes that clients sent.
    INPUT: Counter "archipelago_redis_received_bytes" [];
    /// Bytes that were sent to clients.
    OUTPUT: Counter "archipelago_redis_sent_bytes" [];
    /// Number of keys that reading commands found (`result` is hit) or did not find (miss).
    KEYSPACE: Counter "archipelago_redis_keyspace_lookups" ["result"];
    /// Times of commands by `command`, without the network. Upper bounds are powers of four of a
    /// microsecond. Commands that were never called are absent.
    COMMAND_TIME: Histogram "archipelago_redis_command_duration_seconds" ["command"];
    /// Number of calls of a `command` that were refused before it ran.
    COMMANDS_REJECTED: Counter "archipelago_redis_commands_rejected" ["command"];
    /// Number of calls of a `command` that ended with an error.
    COMMANDS_FAILED: Counter "archipelago_redis_commands_failed" ["command"];
    /// Number of error replies by their `code`. Rare codes beyond the first 128 share the code
    /// `others`.
    ERRORS: Counter "archipelago_redis_error_replies" ["code"];
    /// Number of connections that broke the protocol.
    PROTOCOL_ERRORS: Counter "archipelago_redis_protocol_errors" [];
    /// Number of attempts to authenticate with a wrong user or password.
    DENIED: Counter "archipelago_redis_denied_authentications" [];
    /// Number of HTTP requests that were refused at the port of Redis.
    HTTP: Counter "archipelago_redis_refused_http_requests" [];
    /// Memory that requests (`share` is incoming), values of running commands (working), unread
    /// replies (outgoing), or queued commands and watched keys (transactions) hold.
    SHARE_HELD: Gauge "archipelago_redis_request_memory_bytes" ["share"];
    /// Memory that a `share` may hold. Absent without a limit.
    SHARE_MAX: Gauge "archipelago_redis_request_memory_limit_bytes" ["share"];
    /// Time of the last successful SAVE or BGSAVE, or of the start, since the Unix epoch.
    LAST_SAVE: Gauge "archipelago_redis_last_save_timestamp_seconds" [];
    /// Whether the last SAVE or BGSAVE failed: 1 if it did.
    LAST_SAVE_FAILED: Gauge "archipelago_redis_last_save_failed" [];
}
