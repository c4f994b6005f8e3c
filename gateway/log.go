package gateway

import (
	"log/slog"

	"github.com/centrifugal/centrifuge"
)

// logTo gives what the library says to a logger.
func logTo(l *slog.Logger) centrifuge.LogHandler {
	return func(e centrifuge.LogEntry) {
		write := l.Warn
		if e.Level >= centrifuge.LogLevelError {
			write = l.Error
		}
		attrs := make([]any, 0, 2*len(e.Fields)+2)
		attrs = append(attrs, "detail", e.Message)
		for k, v := range e.Fields {
			attrs = append(attrs, k, v)
		}
		write("gateway node", attrs...)
	}
}
