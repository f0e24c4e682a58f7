//! Metrics of every process: resources, build, the byte budget and the endpoint itself. Static
//! data. The names `process_…` are those of Prometheus' own client libraries.

use super::metrics;

metrics! {
    /// Processor time of the process.
    CPU: Counter "process_cpu_seconds" [];
    /// Memory of the process that is resident.
    RESIDENT: Gauge "process_resident_memory_bytes" [];
    /// Address space of the process.
    VIRTUAL: Gauge "process_virtual_memory_bytes" [];
    /// Number of open file descriptors.
    OPEN_FILES: Gauge "process_open_fds" [];
    /// Number of file descriptors that the process may open.
    OPEN_FILES_MAX: Gauge "process_max_fds" [];
    /// Number of threads of the process.
    THREADS: Gauge "process_threads" [];
    /// Start of the process since the Unix epoch.
    START: Gauge "process_start_time_seconds" [];
    /// Version of the program, as label `version`.
    BUILD: Info "archipelago_build" ["version"];
    /// What the process does, as label `role`, and the number of its node as label `node`. The
    /// number is empty for a role without numbers.
    PROCESS: Info "archipelago_process" ["role", "node"];
    /// Memory that the process may take: the byte budget and what no class counts. Absent without a
    /// limit.
    MEMORY_LIMIT: Gauge "archipelago_memory_limit_bytes" [];
    /// Memory of the machine, or of the control group of the process if that is less.
    MACHINE_MEMORY: Gauge "archipelago_machine_memory_bytes" [];
    /// Byte budget of the memory that grows with load. Absent without a limit.
    MEMORY_BUDGET: Gauge "archipelago_memory_budget_bytes" [];
    /// Memory in use that the byte budget counts, by `class`.
    MEMORY_USED: Gauge "archipelago_memory_used_bytes" ["class"];
    /// Number of times that the figures were collected for a scrape.
    COLLECTIONS: Counter "archipelago_metrics_collections" [];
    /// Time that the collection before this one took.
    COLLECTION_TIME: Gauge "archipelago_metrics_collection_seconds" [];
    /// Number of HTTP requests by the `code` of the answer.
    REQUESTS: Counter "archipelago_metrics_requests" ["code"];
    /// Number of connections that were closed because too many were open.
    REFUSED: Counter "archipelago_metrics_refused_connections" [];
    /// Number of series that the scrape left out because their metric had too many.
    LEFT_OUT: Gauge "archipelago_metrics_left_out_series" [];
}
