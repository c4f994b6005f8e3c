package webhook_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/tidemark-im/tidemark/consumers/tooffline/webhook"
)

func ExampleVerifier() {
	verifier := &webhook.Verifier{Keys: map[string][]byte{"k1": []byte("0123456789abcdef0123456789abcdef")}}
	handled := map[string]bool{} // in a database, for twice the window
	receive := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
		if err != nil {
			http.Error(w, "body", http.StatusBadRequest)
			return
		}
		event, err := verifier.Verify(r.Header, body)
		if err != nil {
			http.Error(w, "signature", http.StatusUnauthorized)
			return
		}
		if !handled[event.Data.ID] { // an attempt whose answer was lost comes again
			fmt.Printf("tell %s of %d messages in %s\n", event.Data.User, event.Data.Messages, event.Data.Conversation)
			handled[event.Data.ID] = true
		}
		w.WriteHeader(http.StatusNoContent)
	}

	// A request as it comes.
	body := `{"type":"message.notification","timestamp":"2026-01-02T03:04:05Z","data":{"id":"msg_1","user":"bob","conversation":"group:g1","messages":3}}`
	request := httptest.NewRequest(http.MethodPost, "/push", http.NoBody)
	request.Header.Set("webhook-id", "msg_1")
	request.Header.Set("webhook-timestamp", "1767323045")
	request.Header.Set("webhook-signature", "v1,qt+jZ2n0z2C1U1qZI301p38QH0JUktN0+boIbG4LFhU=")
	request.Header.Set("tidemark-key-id", "k1")
	verifier.Now = func() time.Time { return time.Unix(1767323045, 0) }
	for range 2 {
		request.Body = io.NopCloser(strings.NewReader(body))
		answer := httptest.NewRecorder()
		receive(answer, request)
		fmt.Println(answer.Code)
	}
	// Output:
	// tell bob of 3 messages in group:g1
	// 204
	// 204
}
