package hot

// The decoders, for fuzzing.
var (
	DecodeView   = decodeView
	DecodeAnswer = decodeAnswer
	EncodeAnswer = encodeAnswer
	ParseNumber  = parseNumber
)

// DecodeMessages is the decoder of messages.lua's reply.
func (h *Hot) DecodeMessages(value any) (int, error) {
	m, err := h.decodeMessages(value)
	return len(m), err
}

// ByScript makes Views go to the script alone.
func (h *Hot) ByScript() { h.plainly = false }
