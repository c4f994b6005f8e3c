package gateway

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// checkOrigin tells what is wrong with an entry of Origins.
func checkOrigin(o string) error {
	if o == "*" {
		return nil
	}
	u, err := url.Parse(o)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != o {
		return fmt.Errorf(`gateway: origin %q is neither "*" nor scheme://host[:port]`, o)
	}
	return nil
}

// mayConnect decides on the Origin that a browser sends for a page.
func (g *Gateway) mayConnect(r *http.Request) bool {
	o := r.Header.Get("Origin")
	if o == "" {
		return true
	}
	u, err := url.Parse(o)
	return err == nil && strings.EqualFold(u.Host, r.Host) || g.listed(o)
}

func (g *Gateway) listed(origin string) bool {
	return slices.ContainsFunc(g.cfg.Origins, func(o string) bool { return o == "*" || strings.EqualFold(o, origin) })
}

// sameOrigin does for plain HTTP what the WebSocket handler does by itself:
// pages of other origins are turned away, and those that are listed may read
// what they are answered.
func (g *Gateway) sameOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.mayConnect(r) {
			http.Error(w, "this origin may not connect", http.StatusForbidden)
			return
		}
		if o := r.Header.Get("Origin"); o != "" && g.listed(o) {
			h := w.Header()
			h.Set("Access-Control-Allow-Origin", o)
			h.Add("Vary", "Origin")
			if r.Method == http.MethodOptions {
				h.Set("Access-Control-Allow-Methods", "GET, POST")
				h.Set("Access-Control-Allow-Headers", "Content-Type")
				h.Set("Access-Control-Max-Age", "300")
				w.WriteHeader(http.StatusNoContent)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
