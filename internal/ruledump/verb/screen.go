package verb

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// screen shows the table of top in place, on a terminal that understands the sequences of ECMA-48 as all of today's do.
// A library for whole screens would add a megabyte to the program for what is here.
type screen struct {
	out    *os.File
	before *term.State
	// quit ends the command.
	quit func()

	mu     sync.Mutex // guards all below
	rates  *Rates     // nil before the first round
	sorted string
	filter string
	// typing says that keys are letters of the filter.
	typing bool
}

// The alternate screen without a cursor, and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
)

// newScreen takes over the terminal until close, and reads the keys of standard input.
func newScreen(out *os.File, quit func(), o topOptions) (*screen, error) {
	before, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return nil, fmt.Errorf("top: set up the terminal: %w", err)
	}
	s := &screen{out: out, before: before, quit: quit, sorted: o.sort}
	if err := s.write(enterScreen); err != nil {
		s.close()
		return nil, err
	}
	s.draw()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	go func() {
		for range resized {
			s.draw()
		}
	}()
	go s.readKeys(os.Stdin)
	return s, nil
}

func (s *screen) close() {
	_ = s.write(leaveScreen) // the terminal may be gone
	_ = term.Restore(int(os.Stdin.Fd()), s.before)
}

func (s *screen) write(text string) error {
	_, err := io.WriteString(s.out, text)
	return err
}

// show replaces the numbers.
func (s *screen) show(r *Rates) error {
	s.mu.Lock()
	s.rates = r
	s.mu.Unlock()
	return s.draw()
}

// readKeys takes keys until there are no more, and then ends the command.
func (s *screen) readKeys(in io.Reader) {
	defer s.quit()
	keys := make([]byte, 64)
	for {
		n, err := in.Read(keys)
		if err != nil {
			return
		}
		if n > 1 && keys[0] == '\x1b' {
			continue // an arrow or another key that sends several bytes
		}
		for _, key := range keys[:n] {
			if !s.press(key) {
				return
			}
		}
		_ = s.draw() // show reports errors too
	}
}

const (
	ctrlC     = 3
	backspace = 8
	escape    = 27
	del       = 127
)

// press reports whether to go on after a key.
func (s *screen) press(key byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case key == ctrlC:
		return false
	case s.typing && (key == '\r' || key == '\n'):
		s.typing = false
	case s.typing && (key == backspace || key == del):
		s.filter = s.filter[:max(0, len(s.filter)-1)]
	case key == escape:
		s.typing, s.filter = false, ""
	case s.typing && key > ' ' && key < del:
		s.filter += string(rune(key))
	case s.typing:
	case key == 'q':
		return false
	case key == '/':
		s.typing = true
	default:
		if i := slices.IndexFunc(sortKeys, func(name string) bool { return name[0] == key }); i >= 0 {
			s.sorted = sortKeys[i]
		}
	}
	return true
}

// draw writes the lines over those that are there. What does not fit is cut.
func (s *screen) draw() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil {
		return fmt.Errorf("top: size of the terminal: %w", err)
	}
	lines := s.lines(height)
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range lines[:min(len(lines), height)] {
		if i > 0 {
			b.WriteString("\r\n")
		}
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:width])
		}
		if strings.HasPrefix(line, "SERVICE PORT") {
			line = "\x1b[1m" + line + "\x1b[0m"
		}
		b.WriteString(line + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	return s.write(b.String())
}

func (s *screen) lines(height int) []string {
	if s.rates == nil {
		return []string{"The first round comes after the --interval."}
	}
	s.rates.sort(s.sorted)
	var shown []*serviceRate
	for _, r := range s.rates.Services {
		if strings.Contains(r.name, s.filter) {
			shown = append(shown, r)
		}
	}
	filter := "/ filter"
	if s.typing || s.filter != "" {
		filter = fmt.Sprintf("/%s (%d, Esc for all)", s.filter, len(shown))
	}
	p := &Page{}
	p.printf("%s\nsorted by %s; c, p, b, r, n sort, %s, q ends\n\n", s.rates.title(), s.sorted, filter)
	s.rates.print(p, shown[:min(len(shown), max(0, height))], s.sorted)
	return strings.Split(strings.TrimSuffix(p.String(), "\n"), "\n")
}
