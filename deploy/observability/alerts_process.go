package observability

import "time"

func engineAlerts() []Alert {
	return []Alert{
		{
			Name: "SluiceEndpointsEjected", Group: groupEngines, Severity: Warning, For: 5 * time.Minute,
			Expr:        `sluice_outlier_ejected_endpoints > 0`,
			Summary:     "Endpoints fail their requests.",
			Description: "{{ $value }} endpoints failed several requests in a row and have not served one since, as {{ $labels.instance }} sees it.",
			Means:       "An ejected endpoint gets a single request now and then, until one succeeds ([when an engine dies](operating.md#when-an-engine-dies)).",
			Do:          []string{"The log names them. Restart the engine, or take it off the list."},
		},
		{
			Name: "SluiceEngineMetricsStale", Group: groupEngines, Severity: Warning, For: 10 * time.Minute,
			Expr:        `sum by (instance, state) (sluice_engine_metrics_endpoints{state=~"stale|unknown"}) > 0`,
			Summary:     "Engines' metrics cannot be read.",
			Description: "Of {{ $value }} endpoints the engine's metrics are {{ $labels.state }} on {{ $labels.instance }}.",
			Means:       "Their queues, KV cache use and cache size are not known. Scorers that use them leave these endpoints out of account.",
			Do:          []string{"`sluice_engine_scrapes_total` says how scrapes end, the log for whom; [engine-metrics.md](engine-metrics.md) what is read."},
		},
		{
			Name: "SluiceDiscoveryFailing", Group: groupEngines, Severity: Warning, For: 5 * time.Minute,
			Expr:        `sluice_discovery_files_failing + sluice_discovery_names_failing + sluice_discovery_kubernetes_failing > 0`,
			Summary:     "A source of endpoints cannot be read.",
			Description: "{{ $value }} endpoints files, DNS names or queries of Kubernetes of {{ $labels.instance }} cannot be read or resolved. What was known before is kept.",
			Means:       "Changes of the pool are not seen.",
			Do:          []string{"The log has the fault; [endpoints.md](endpoints.md) the format and the rules, [kubernetes.md](kubernetes.md) the rights that are needed."},
		},
		{
			Name: "SluiceEndpointsRefused", Group: groupEngines, Severity: Warning, For: 5 * time.Minute,
			Expr:        `sluice_discovery_refused + sluice_discovery_invalid + sluice_discovery_bad_entries > 0`,
			Summary:     "Endpoints are left out.",
			Description: "{{ $value }} published endpoints are left out by {{ $labels.instance }}.",
			Means:       "Their address is no `ip:port`, their entry cannot be read, or the set is at its limit.",
			Do:          []string{"`sluice_discovery_invalid`, `sluice_discovery_bad_entries` and `sluice_discovery_refused` say which of the three; the log names them."},
		},
	}
}

func processAlerts() []Alert {
	return []Alert{
		{
			Name: "SluiceConfigReloadFailed", Group: groupProcess, Severity: Warning, For: 2 * time.Minute,
			Expr:        `sluice_config_last_reload_successful == 0`,
			Summary:     "The configuration file is not what runs.",
			Description: "{{ $labels.instance }} has refused the configuration file as it stands, and runs the one before.",
			Means:       "The file has a fault. A restart would fail.",
			Do:          []string{"`sluice config check FILE` lists all faults; so does the log."},
		},
		{
			Name: "SluiceCertificateExpires", Group: groupProcess, Severity: Warning, For: time.Hour,
			Expr:        `sluice_tls_certificate_expiry_timestamp_seconds - time() < 7 * 86400`,
			Summary:     "A certificate expires within a week.",
			Description: "The {{ $labels.listener }} certificate of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}.",
			Means:       "It should have been renewed by now.",
			Do:          []string{"Renew the files of `server.tls` or `server.adminTLS`; they are followed, no restart is needed.", "A renewed file that was refused shows in `sluice_tls_reload_failures_total` and in the log."},
		},
		{
			Name: "SluiceCertificateExpiresSoon", Group: groupProcess, Severity: Critical, For: 5 * time.Minute,
			Expr:        `sluice_tls_certificate_expiry_timestamp_seconds - time() < 86400`,
			Summary:     "A certificate expires within a day.",
			Description: "The {{ $labels.listener }} certificate of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}. After that, proxies refuse the connection.",
			Means:       "As SluiceCertificateExpires, with a day left.",
			Do:          []string{"Renew them now."},
		},
		{
			Name: "SluiceCertificateRefused", Group: groupProcess, Severity: Warning,
			Expr:        `increase(sluice_tls_reload_failures_total[1h]) > 0`,
			Summary:     "A changed certificate was refused.",
			Description: "{{ $labels.instance }} has refused a changed certificate of its {{ $labels.listener }} listener and serves the one before.",
			Means:       "Certificate and key do not fit together, or cannot be read.",
			Do:          []string{"The log has the fault. Write both files at once, as Kubernetes' secrets are."},
		},
		{
			Name: "SluiceStreamsNearLimit", Group: groupProcess, Severity: Warning, For: 5 * time.Minute,
			Expr:        `sluice_open_streams / ignoring (key) sluice_limit{key="server.maxOpenStreams"} > 0.8`,
			Summary:     "Open streams near their limit.",
			Description: "{{ $value | humanizePercentage }} of the streams that {{ $labels.instance }} may hold are open. At the limit new requests are answered with 429.",
			Means:       "A stream is open from a request's headers to the end of its answer.",
			Do:          []string{"Add replicas, raise `server.maxOpenStreams`, or end streams earlier: `server.endStream`."},
		},
		{
			Name: "SluiceMemoryNearLimit", Group: groupProcess, Severity: Warning, For: 5 * time.Minute,
			Expr:        `sluice_buffered_bytes / ignoring (key) sluice_limit_bytes{key="server.maxBufferedBytes"} > 0.8`,
			Summary:     "Request bodies near their limit of memory.",
			Description: "{{ $labels.instance }} holds {{ $value | humanizePercentage }} of the bytes that requests being served may take. At the limit new ones are answered with 429.",
			Means:       "What requests hold while they are served: bodies above all.",
			Do:          []string{"Add replicas, or give the process more memory ([operating.md](operating.md#memory))."},
		},
		{
			Name: "SluiceDecisionLogIncomplete", Group: groupProcess, Severity: Warning, For: 5 * time.Minute,
			Expr:        `sum by (instance, reason) (rate(sluice_decision_log_dropped_total[5m])) > 0`,
			Summary:     "The decision log lacks decisions.",
			Description: "{{ $labels.instance }} drops {{ $value | humanize }} sampled decisions a second from its decision log: {{ $labels.reason }}.",
			Means:       "`full`: what waits to be written reaches `telemetry.decisionLog.maxPendingBytes`. `write_error`: files cannot be written, and what was to be in them is lost. Requests are served as ever.",
			Do:          []string{"`write_error`: look at the folder's space and permissions; the log has the fault.", "`full`: sample fewer decisions, or use a faster disk."},
		},
		{
			Name: "SluiceModelLabelsFull", Group: groupProcess, Severity: Info, For: 15 * time.Minute,
			Expr:        `sluice_model_labels >= ignoring (key) sluice_limit{key="telemetry.maxModelLabels"}`,
			Summary:     "New model names have no label of their own.",
			Description: "{{ $labels.instance }} has seen {{ $value }} model names; further ones are counted as `other`.",
			Means:       "More models or adapters are served than `telemetry.maxModelLabels` allows for.",
			Do:          []string{"Name those that matter in `telemetry.modelLabels`, or raise the limit."},
		},
	}
}
