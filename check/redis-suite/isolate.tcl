# Keeps one failure from causing others. Read by the test program of Redis before it begins.

# Open a new connection after a failure: the old one may be between MULTI and EXEC, watch keys or
# still have replies to read. Remove the keys that the test would have removed at its end.
rename test test_of_suite
proc test {name args} {
    set failed $::num_failed
    uplevel 1 [list test_of_suite $name {*}$args]
    if {$::num_failed > $failed} {
        reconnect
        r flushall
    }
}

# The suite sets what a file wants before its tests, and removes all functions. A setting or
# facility that the server does not have makes tests fail, not whole files.
rename r r_of_suite
proc r {args} {
    set caller [expr {[info level] > 1 ? [lindex [info level -1] 0] : ""}]
    set command [lindex $args 0]
    if {$caller eq "run_external_server_test" && $command in {config function}} {
        if {[catch {r_of_suite {*}$args} reply]} {
            return ""
        }
        return $reply
    }
    r_of_suite {*}$args
}

rename config_set config_set_of_suite
proc config_set {args} {
    if {$::cur_test ne ""} {
        return [config_set_of_suite {*}$args]
    }
    catch {config_set_of_suite {*}$args}
}
