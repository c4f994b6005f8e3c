//go:build !programs

package stack_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"
)

// docRunner gives what sends the request of a command of the page to a service
// that listens at address, as the program would that it names.
func docRunner(t *testing.T, address string) func(command string) []byte {
	t.Helper()
	plain, http2 := new(http.Transport), &http.Transport{Protocols: new(http.Protocols)}
	http2.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(plain.CloseIdleConnections)
	t.Cleanup(http2.CloseIdleConnections)
	post := func(over *http.Transport, url, contentType string, body []byte) []byte {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", contentType)
		res, err := over.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	return func(command string) []byte {
		words := shellWords(strings.ReplaceAll(command, docAddress, address))
		var data string
		for i, w := range words {
			if w == "-d" {
				data = words[i+1]
			}
		}
		if words[0] == "curl" {
			return post(plain, words[2], "application/json", []byte(data))
		}
		frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(data)))
		url := "http://" + words[len(words)-2] + "/" + words[len(words)-1]
		answer := post(http2, url, "application/grpc+json", append(frame, data...))
		if len(answer) < 5 {
			t.Fatalf("%s: no message came back", command)
		}
		return answer[5:]
	}
}

// shellWords splits a command as a shell does that knows single quotes, double
// quotes and lines that go on.
func shellWords(command string) (words []string) {
	var word strings.Builder
	quote, open := rune(0), false
	for _, c := range strings.ReplaceAll(command, "\\\n", " ") {
		switch {
		case quote == 0 && (c == '\'' || c == '"'):
			quote, open = c, true
		case c == quote && quote != 0:
			quote = 0
		case quote == 0 && (c == ' ' || c == '\n'):
			if open {
				words = append(words, word.String())
			}
			word.Reset()
			open = false
		default:
			open = true
			word.WriteRune(c)
		}
	}
	return words
}
