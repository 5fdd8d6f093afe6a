package verb

import "testing"

func TestPage(t *testing.T) {
	for _, tt := range []struct {
		name, text, want string
		colours          bool
	}{
		{"has lines and columns", "a\tb\nö →\n", "a\tb\nö →\n", false},
		{"does not set a terminal's title", "chain \x1b]0;evil\x07", `chain \x1b]0;evil\a`, true},
		{"does not clear a terminal", "\x1b[2J \u009b2J \r", `\x1b[2J \u009b2J \r`, true},
		{"marks in colour", "\x1b[31mbad\x1b[0m", "\x1b[31mbad\x1b[0m", true},
		{"marks nothing without colours", "\x1b[31mbad", `\x1b[31mbad`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &Page{colours: tt.colours}
			p.WriteString(tt.text)
			if got := p.String(); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
