package verb

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// A pager prints text on a terminal, and waits after each screen for a key. It starts no program, and cannot scroll
// back: terminals do.
type pager struct {
	out  *os.File
	keys chan byte
	// ended tells that the user or the system ends the command.
	ended chan os.Signal
}

// writePages writes text. If it goes to a terminal that it does not fit, and keys come from one, Space shows another
// screen, Enter another line, and q ends.
func writePages(w io.Writer, text string) error {
	out := terminalOf(w)
	if out == nil {
		_, err := io.WriteString(w, text)
		return err
	}
	p := &pager{out: out, ended: make(chan os.Signal, 1)}
	signal.Notify(p.ended, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(p.ended)
	return p.write(slices.Collect(strings.Lines(text)))
}

// terminalOf returns a writer that is a terminal which takes commands, if keys come from one too; else nil.
func terminalOf(w io.Writer) *os.File {
	file, isFile := w.(*os.File)
	if !isFile || os.Getenv("TERM") == "dumb" || !term.IsTerminal(int(file.Fd())) || !term.IsTerminal(int(os.Stdin.Fd())) {
		return nil
	}
	return file
}

func (p *pager) write(lines []string) error {
	width, left := p.room()
	first := true // line of a screen: it is written however long it is
	for i, line := range lines {
		if !first && rowsOf(line, width) > left {
			key, err := p.ask(fmt.Sprintf("-- %d of %d lines: Space, Enter or q --", i, len(lines)))
			switch {
			case err != nil || key == 'q':
				return err
			case key == ' ':
				width, left = p.room()
			default:
				left = 0
			}
		}
		if _, err := io.WriteString(p.out, line); err != nil {
			return err
		}
		left -= rowsOf(line, width)
		first = false
	}
	return nil
}

// room returns the columns of the terminal, and its rows but for that of the question.
func (p *pager) room() (width, rows int) {
	width, height, err := term.GetSize(int(p.out.Fd()))
	if err != nil || width < 1 || height < 2 {
		return 80, 23
	}
	return width, height - 1
}

var colourCodes = regexp.MustCompile(`\x1b\[[0-9]*m`)

// rowsOf returns how many rows of a terminal a line takes.
func rowsOf(line string, width int) int {
	line = strings.TrimSuffix(strings.ReplaceAll(colourCodes.ReplaceAllString(line, ""), "\t", strings.Repeat(" ", 8)), "\n")
	return max(1, (utf8.RuneCountInString(line)+width-1)/width)
}

// ask waits for Space, Enter ('\r') or q, which stands for any end.
func (p *pager) ask(question string) (key byte, err error) {
	in := int(os.Stdin.Fd())
	before, err := term.MakeRaw(in) // so that keys come at once
	if err != nil {
		return 'q', err
	}
	defer func() { _ = term.Restore(in, before) }()
	defer fmt.Fprint(p.out, "\r\x1b[K")
	if _, err := io.WriteString(p.out, question); err != nil {
		return 'q', err
	}
	if p.keys == nil {
		p.keys = make(chan byte)
		go p.readKeys()
	}
	const ctrlC, ctrlD = 3, 4
	for {
		select {
		case <-p.ended:
			return 'q', nil
		case key, more := <-p.keys:
			switch {
			case !more || key == ctrlC || key == ctrlD || key == 'q' || key == 'Q':
				return 'q', nil
			case key == ' ' || key == '\r':
				return key, nil
			case key == '\n':
				return '\r', nil
			}
		}
	}
}

// readKeys reads keys until the process ends.
func (p *pager) readKeys() {
	defer close(p.keys)
	for key := make([]byte, 1); ; {
		if _, err := os.Stdin.Read(key); err != nil {
			return
		}
		p.keys <- key[0]
	}
}
