package config

import "net/url"

// Console configures the page on which a deployment can be watched.
type Console struct {
	Enabled   bool     `koanf:"enabled" doc:"Serve the console on the sync port, under /console/ (docs/console.md)."`
	Gateway   string   `koanf:"gateway" doc:"Gateway that the console's panes are connected through, for example ws://10.0.0.5:8081/connection/websocket. Empty: this process's own, if it runs one."`
	Processes []string `koanf:"processes" doc:"Operator ports of other processes whose metrics and readiness the console shows, for example http://10.0.0.5:8082."`
}

func (c *Config) validateConsole(bad badFunc) {
	plain := func(s string, schemes ...string) bool {
		u, err := url.Parse(s)
		if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return false
		}
		return u.Scheme == schemes[0] || u.Scheme == schemes[1]
	}
	if g := c.Sync.Console.Gateway; g != "" && !plain(g, "ws", "wss") {
		bad("sync.console.gateway", "%q is not ws://host:port/path or wss://host:port/path", g)
	}
	for _, p := range c.Sync.Console.Processes {
		if !plain(p, "http", "https") {
			bad("sync.console.processes", "%q is not http://host:port or https://host:port", p)
		}
	}
}
