package main

// board is one dashboard.
type board struct {
	uid, title, about string
	rows              []row
}

type row struct {
	title  string
	panels []panel
}

// panel is a graph of one or more queries.
type panel struct {
	title string
	about string
	// unit is Grafana's word for it; "short" is a plain number.
	unit    string
	queries []query
	// picture is the name of its picture in docs/img. Empty: none.
	picture string
}

type query struct{ expr, legend string }

func one(expr, legend string) []query { return []query{{expr, legend}} }

// quantiles are the median and the 99th percentile of a histogram.
func quantiles(histogram, by string) []query {
	labels, legend := "le", ""
	if by != "" {
		labels, legend = "le, "+by, " {{"+by+"}}"
	}
	of := func(q string) string {
		return "histogram_quantile(" + q + ", sum by (" + labels + ") (rate(" + histogram + "[$__rate_interval])))"
	}
	return []query{{of("0.5"), "p50" + legend}, {of("0.99"), "p99" + legend}}
}

func rate(metric, by string) string {
	return "sum by (" + by + ") (rate(" + metric + "[$__rate_interval]))"
}

// stores are the call times of whichever history there is.
const stores = `{__name__=~"tidemark_(history|embedded)_call_seconds_bucket"}`

func boards() []board { return []board{overview(), lag(), syncBoard(), storesBoard(), push()} }

func overview() board {
	return board{
		uid: "tidemark-overview", title: "Tidemark / Overview",
		about: "Whether messages come in, get their seqs, are stored and pushed, and how long that takes.",
		rows: []row{
			{"Traffic", []panel{
				{title: "Messages sequenced", about: "By what became of them: again is Kafka's redelivery, resent a producer's.", unit: "ops", picture: "sequenced",
					queries: one(rate(`tidemark_toredis_inputs_total{kind="message"}`, "verdict"), "{{verdict}}")},
				{title: "Rows stored", unit: "ops", about: "By what became of them; a conflict is handed back to its owner.",
					queries: one(rate("tidemark_tomongo_rows_total", "fate"), "{{fate}}")},
				{title: "Events pushed", unit: "ops", about: "Handed off for delivery, by kind.",
					queries: one(rate("tidemark_topush_events_total", "kind"), "{{kind}}")},
				{title: "Calls of the sync API", unit: "ops", about: "By Connect code.",
					queries: one(rate("tidemark_syncapi_calls_total", "code"), "{{code}}")},
			}},
			{"Latency from the producer", []panel{
				{title: "Until sequenced", unit: "s", about: "From the time of the record.", queries: quantiles("tidemark_toredis_sequenced_seconds_bucket", ""), picture: "until-sequenced"},
				{title: "Until stored", unit: "s", about: "From the time of the record.", queries: quantiles("tidemark_tomongo_persisted_seconds_bucket", "")},
				{title: "Until pushed", unit: "s", about: "From the time of the record.", queries: quantiles("tidemark_topush_pushed_seconds_bucket", "")},
				{title: "Calls of the sync API", unit: "s", about: "From a call's arrival to its answer.", queries: quantiles("tidemark_syncapi_call_seconds_bucket", "method")},
			}},
			{"Trouble", []panel{
				{title: "Lag", unit: "s", about: "Age of the oldest record that is not processed.", queries: one("max by (group) (tidemark_pipeline_lag_seconds)", "{{group}}")},
				{title: "Partitions that do not move", unit: "short", about: "Retried in place; the lag board says why.", queries: one("sum by (stage) (tidemark_pipeline_stuck_partitions)", "{{stage}}")},
				{title: "Dead letters", unit: "short", about: "Set aside within the last quarter of an hour.", queries: one("sum by (topic) (increase(tidemark_pipeline_dead_letters_total[15m]))", "{{topic}}")},
				{title: "Conflicts and findings", unit: "short", about: "Within the last quarter of an hour. Both must stay at 0.", queries: []query{
					{"sum(increase(tidemark_tomongo_conflicts_total[15m]))", "conflicts"}, {"sum(increase(tidemark_audit_findings_total[15m]))", "audit findings"}}},
			}},
			{"Processes", []panel{
				{title: "Processors used", unit: "short", about: "By process.", queries: one("sum by (instance) (rate(process_cpu_seconds_total[$__rate_interval]))", "{{instance}}")},
				{title: "Memory", unit: "bytes", about: "Resident, by process.", queries: one("process_resident_memory_bytes", "{{instance}}")},
				{title: "Goroutines", unit: "short", about: "By process.", queries: one("go_goroutines", "{{instance}}")},
				{title: "Garbage collection", unit: "percentunit", about: "Part of the time that everything stands still for it.", queries: one("sum by (instance) (rate(go_gc_duration_seconds_sum[$__rate_interval]))", "{{instance}}")},
			}},
		},
	}
}

func lag() board {
	return board{
		uid: "tidemark-lag", title: "Tidemark / Lag and consumer groups",
		about: "Who is behind, by how much, who reads, and what stands still. Shown by the role lag, from outside.",
		rows: []row{
			{"Lag", []panel{
				{title: "Age of the oldest record", unit: "s", about: "By partition.", queries: one("max by (group, partition) (tidemark_pipeline_lag_seconds)", "{{group}} {{partition}}"), picture: "lag-age"},
				{title: "Records", unit: "short", about: "By partition.", queries: one("sum by (group, partition) (tidemark_pipeline_lag_records)", "{{group}} {{partition}}"), picture: "lag-records"},
				{title: "Retention left", unit: "s", about: "Until Kafka deletes the oldest record that is not processed.", queries: one("min by (group, topic) (tidemark_pipeline_lag_headroom_seconds)", "{{group}}")},
				{title: "Retention used", unit: "percentunit", about: "At 100 % the oldest record is deleted unread.", queries: one("max by (group, topic) (tidemark_pipeline_lag_retention_ratio)", "{{group}}")},
			}},
			{"Consumer groups", []panel{
				{title: "Members", unit: "short", about: "Of each group.", queries: one("max by (group) (tidemark_pipeline_group_members)", "{{group}}"), picture: "members"},
				{title: "Claimed partitions", unit: "short", about: "By process.", queries: one("sum by (stage, instance) (tidemark_pipeline_claimed_partitions)", "{{stage}} {{instance}}")},
				{title: "Records handled", unit: "ops", about: "By stage.", queries: one(rate("tidemark_pipeline_handled_records_total", "stage"), "{{stage}}")},
				{title: "Time of a batch", unit: "s", about: "Of one attempt, good or bad.", queries: quantiles("tidemark_pipeline_handle_seconds_bucket", "stage")},
			}},
			{"What stands still", []panel{
				{title: "Stuck for", unit: "s", about: "By partition and why. Empty when everything moves.", queries: one("max by (stage, partition, reason) (tidemark_pipeline_stuck_seconds)", "{{stage}} {{partition}} {{reason}}"), picture: "stuck"},
				{title: "Retries in place", unit: "ops", about: "By stage and why.", queries: one(rate("tidemark_pipeline_retries_total", "stage, reason"), "{{stage}} {{reason}}")},
				{title: "toRedis holds back", unit: "short", about: "Partitions with parked records, or that wait, by why.", queries: one("sum by (reason) (tidemark_toredis_waiting_partitions)", "{{reason}}")},
				{title: "Dead letters", unit: "short", about: "Within the last quarter of an hour, by topic and cause.", queries: one("sum by (topic, reason) (increase(tidemark_pipeline_dead_letters_total[15m])) > 0", "{{topic}} {{reason}}")},
			}},
		},
	}
}

func syncBoard() board {
	return board{
		uid: "tidemark-sync", title: "Tidemark / Sync and isEnd anomalies",
		about: "The query service: what is asked, how it is answered, and pages that a sound client never sees.",
		rows: []row{
			{"Anomalies", []panel{
				{title: "isEnd anomalies", unit: "short", about: "Within the last quarter of an hour: empty, repeat, gap.", queries: one("sum by (kind) (increase(tidemark_syncapi_is_end_anomalies_total[15m]))", "{{kind}}"), picture: "is-end"},
				{title: "Errors", unit: "ops", about: "Calls that were not answered, by method and code.", queries: one(rate(`tidemark_syncapi_calls_total{code!="ok"}`, "method, code"), "{{method}} {{code}}")},
				{title: "Refused by a limit", unit: "ops", about: "Of users, or of the process (busy).", queries: one(rate("tidemark_syncapi_limited_calls_total", "limit")+" or on () vector(0)", "{{limit}}")},
				{title: "Waiting for an owner", unit: "short", about: "Calls that want a seq or the answer to a command.", queries: one("sum(tidemark_syncapi_waiting_calls)", "calls")},
			}},
			{"Calls", []panel{
				{title: "By method", unit: "ops", about: "All of them.", queries: one(rate("tidemark_syncapi_calls_total", "method"), "{{method}}")},
				{title: "Time of an answer", unit: "s", about: "By method.", queries: quantiles("tidemark_syncapi_call_seconds_bucket", "method"), picture: "sync-calls"},
				{title: "Warm or cold", unit: "ops", about: "What Redis had of a conversation.", queries: one(rate("tidemark_syncapi_views_total", "temperature"), "{{temperature}}")},
				{title: "Where messages came from", unit: "ops", about: "hot is Redis, truth history and the tail of the log.", queries: one(rate("tidemark_syncapi_rows_total", "source"), "{{source}}")},
			}},
			{"Marks", []panel{
				{title: "Read marks", unit: "ops", about: "Marks, and the records that they share.", queries: []query{{"sum(rate(tidemark_syncapi_marks_total[$__rate_interval]))", "marks"}, {rate("tidemark_syncapi_mark_appends_total", "outcome"), "records {{outcome}}"}}},
				{title: "Tail: catching up", unit: "s", about: "How long a request waits until a view has reached the end of the log.", queries: quantiles("tidemark_pipeline_tail_catch_up_seconds_bucket", "")},
				{title: "Tail: records held", unit: "short", about: "Folded, in memory, by process.", queries: one("sum by (instance) (tidemark_pipeline_tail_records)", "{{instance}}")},
				{title: "Tail: length", unit: "short", about: "What history may not have yet.", queries: one("sum(tidemark_pipeline_tail_length_records)", "records")},
			}},
		},
	}
}

func storesBoard() board {
	return board{
		uid: "tidemark-stores", title: "Tidemark / Write-behind and stores",
		about: "Redis, history, and the watermarks between them.",
		rows: []row{
			{"Write-behind", []panel{
				{title: "Watermarks and bounds pending", unit: "short", about: "Coalesced, not written yet.", queries: []query{{"sum(tidemark_tomongo_pending_members)", "members"}, {"sum(tidemark_tomongo_pending_conversations)", "conversations"}}, picture: "pending"},
				{title: "Age of the oldest", unit: "s", about: "By process. It is written after tomongo.flush_interval at the latest.", queries: one("max by (instance) (tidemark_tomongo_pending_age_seconds)", "{{instance}}")},
				{title: "Advances for each write", unit: "short", about: "What coalescing saves.", queries: one("sum(rate(tidemark_tomongo_advances_total[$__rate_interval])) / (sum(rate(tidemark_tomongo_flushed_members_total[$__rate_interval])) + sum(rate(tidemark_tomongo_flushed_conversations_total[$__rate_interval])))", "ratio"), picture: "coalescing"},
				{title: "Flushes", unit: "ops", about: "By why: the count, how many are different, the time, nothing else to do.", queries: one(rate("tidemark_tomongo_flushes_total", "reason"), "{{reason}}")},
			}},
			{"History", []panel{
				{title: "Time of a call", unit: "s", about: "By operation.", queries: quantiles(stores, "op"), picture: "history-calls"},
				{title: "Errors", unit: "ops", about: "By operation and why.", queries: one(`sum by (op, reason) (rate({__name__=~"tidemark_(history|embedded)_errors_total"}[$__rate_interval])) or on () vector(0)`, "{{op}} {{reason}}")},
				{title: "Cold loads", unit: "ops", about: "By why Redis could not be believed.", queries: one(rate("tidemark_toredis_cold_loads_total", "why"), "{{why}}")},
				{title: "Time of a cold read", unit: "s", about: "Of history and tail.", queries: quantiles("tidemark_truth_read_seconds_bucket", "op")},
			}},
			{"Redis and sequencing", []panel{
				{title: "Time of a call", unit: "s", about: "All round trips included.", queries: quantiles("tidemark_hot_call_seconds_bucket", "call")},
				{title: "Errors", unit: "ops", about: "By call.", queries: one(rate("tidemark_hot_errors_total", "call, class"), "{{call}} {{class}}")},
				{title: "Decided", unit: "ops", about: "Accepted is a seq given; resent and again are duplicates.", queries: one(rate("tidemark_seqalloc_outcomes_total", "verdict"), "{{verdict}}")},
				{title: "Script", unit: "ops", about: "Warm, or why a conversation was cold.", queries: one(rate("tidemark_seqalloc_calls_total", "result"), "{{result}}")},
			}},
			{"Redis's memory", []panel{
				{title: "Of maxmemory", unit: "percentunit", about: "By master. A full one refuses writes, and messages wait; an alert comes at 75 %.",
					queries: one("max by (server) (tidemark_hot_memory_used_bytes / (tidemark_hot_memory_limit_bytes > 0))", "{{server}}")},
				{title: "Used", unit: "bytes", about: "By master.", queries: one("max by (server) (tidemark_hot_memory_used_bytes)", "{{server}}")},
			}},
			{"Kafka", []panel{
				{title: "Appended", unit: "ops", about: "Records, by topic.", queries: one(rate("tidemark_pipeline_appended_records_total", "topic"), "{{topic}}")},
				{title: "Bytes appended", unit: "Bps", about: "By topic.", queries: one(rate("tidemark_pipeline_appended_bytes_total", "topic"), "{{topic}}")},
				{title: "In flight", unit: "short", about: "Sent and not answered.", queries: one("sum by (client) (tidemark_pipeline_append_in_flight_records)", "{{client}}")},
				{title: "Records in a batch", unit: "short", about: "By stage: one when idle, many when busy.", queries: quantiles("tidemark_pipeline_batch_records_bucket", "stage")},
			}},
		},
	}
}

func push() board {
	return board{
		uid: "tidemark-push", title: "Tidemark / Push",
		about: "From the log to the devices.",
		rows: []row{
			{"Push", []panel{
				{title: "Events handed off", unit: "ops", about: "By kind.", queries: one(rate("tidemark_topush_events_total", "kind"), "{{kind}}"), picture: "pushed"},
				{title: "Recipients", unit: "ops", about: "Users to whom events were handed off.", queries: one("sum(rate(tidemark_topush_recipients_total[$__rate_interval]))", "users")},
				{title: "Until pushed", unit: "s", about: "From the time of the record.", queries: quantiles("tidemark_topush_pushed_seconds_bucket", "")},
				{title: "Not handed off", unit: "ops", about: "By why: replayed, too old, undecodable.", queries: one(rate("tidemark_topush_skipped_events_total", "reason")+" or on () vector(0)", "{{reason}}")},
			}},
			{"Gateway", []panel{
				{title: "Connections", unit: "short", about: "Devices, by process.", queries: one("sum by (instance) (tidemark_gateway_connections)", "{{instance}}"), picture: "connections"},
				{title: "Events to the broker", unit: "ops", about: "One for each user, by outcome.", queries: one(rate("tidemark_gateway_events_total", "outcome"), "{{outcome}}")},
				{title: "Disconnects", unit: "ops", about: "By kind; slow is a device that does not read.", queries: one(rate("tidemark_gateway_disconnects_total", "kind")+" or on () vector(0)", "{{kind}}")},
				{title: "Members in memory", unit: "short", about: "Of the conversations that are pushed to, by process.", queries: one("sum by (instance) (tidemark_topush_cached_members)", "{{instance}}")},
			}},
		},
	}
}
