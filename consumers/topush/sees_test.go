package topush

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark-im/tidemark/watermark"
)

// sees is a second way to read a window, for speed; it must agree with the
// first. This one test is inside the package, since sees is.
func TestSeesAgreesWithTheWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := watermark.Member{User: "A", Version: rapid.Int64Range(0, 1).Draw(t, "version")}
		for i := range rapid.IntRange(0, 3).Draw(t, "memberships") {
			m.LastMembership = int32(i + 1)
			m.Memberships = append(m.Memberships, watermark.Membership{
				Number: m.LastMembership,
				Lower:  watermark.Seq(rapid.Int64Range(0, 12).Draw(t, "lower")),
				Upper:  watermark.Seq(rapid.Int64Range(0, 12).Draw(t, "upper")),
			})
		}
		n := watermark.Seq(rapid.OneOf(rapid.Int64Range(-1, 13), rapid.Just(int64(watermark.MaxSeq)), rapid.Int64()).Draw(t, "seq"))
		if got, want := sees(&m, n), m.Window().Contains(n); got != want {
			t.Errorf("sees(%+v, %d) = %v, want %v", m, n, got, want)
		}
	})
}
