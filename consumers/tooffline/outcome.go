package tooffline

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// OutcomeOf says what an HTTP answer of an endpoint means: nil for any 2xx, else
// a SendError. 400, 410, 413, 415 and 422 are about the notification, which
// would be refused again. All others may heal, also 401, 403 and 404, which
// somebody has to mend: a wrong key must not empty the queue into the dead
// letters at once.
func OutcomeOf(endpoint string, status int, h http.Header) error {
	if status >= 200 && status < 300 {
		return nil
	}
	e := &SendError{Err: fmt.Errorf("%s: status %d %s", endpoint, status, http.StatusText(status))}
	switch status {
	case http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		e.Final = true
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		e.RetryAfter, e.Whole = RetryAfter(h, time.Now()), true
	default:
		e.RetryAfter = RetryAfter(h, time.Now())
	}
	return e
}

// RetryAfter reads the header of that name, in seconds or as a date. 0: it is
// not there, or nobody can read it.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	v := h.Get("Retry-After")
	if n, err := strconv.ParseInt(v, 10, 64); err == nil {
		return time.Duration(min(max(n, 0), int64(MaxRetryAfterRead/time.Second))) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil {
		return min(max(t.Sub(now), 0), MaxRetryAfterRead)
	}
	return 0
}

// MaxRetryAfterRead bounds what RetryAfter gives.
const MaxRetryAfterRead = 30 * 24 * time.Hour
