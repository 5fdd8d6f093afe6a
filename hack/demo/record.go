package main

import (
	"bytes"
	"fmt"
	"html"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// recording keeps each line of the demo and when it was printed.
type recording struct {
	lines   []recordedLine
	partial []byte
}

type recordedLine struct {
	text    string
	printed time.Time
}

func (r *recording) Write(p []byte) (int, error) {
	now := time.Now()
	r.partial = append(r.partial, p...)
	for {
		line, rest, whole := bytes.Cut(r.partial, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		r.lines, r.partial = append(r.lines, recordedLine{string(line), now}), rest
	}
}

// writeFile draws what was recorded.
func (r *recording) writeFile(path string) error {
	return os.WriteFile(path, []byte(drawing(framesOf(r.lines))), 0o644)
}

// recordedParagraphs says how many paragraphs of a step are drawn, the heading included. Other steps are left out.
var recordedParagraphs = map[string]int{"2": 3, "3": 2, "4": 4, "6": 10}

// frame is text that appears at once, some time after the first one.
type frame struct {
	lines []string
	after time.Duration
}

const (
	// reading is the time that the picture waits after each frame, and atTheEnd after the
	// last one, on top of the recorded time.
	reading, atTheEnd = 1500 * time.Millisecond, 8 * time.Second
	// atOnce bounds the time between two lines of one frame.
	atOnce = 50 * time.Millisecond
)

// framesOf chooses the paragraphs to draw, and makes a frame of each. A paragraph that took a while has several.
func framesOf(lines []recordedLine) []frame {
	frames := []frame{{lines: []string{"$ make demo"}}}
	if len(lines) == 0 {
		return frames
	}
	step, paragraph, begins, before := "", 0, true, lines[0].printed
	for _, l := range lines {
		if l.text == "" {
			begins = true
			continue
		}
		if number, _, heading := strings.Cut(l.text, ". "); heading && !strings.HasPrefix(l.text, " ") {
			step, paragraph = number, 0
		}
		if begins {
			paragraph++
		}
		if paragraph <= recordedParagraphs[step] {
			if begins || l.printed.Sub(before) > atOnce {
				last := frames[len(frames)-1].after
				frames = append(frames, frame{after: last + reading + l.printed.Sub(before)})
			}
			last := &frames[len(frames)-1]
			if begins {
				last.lines = append(last.lines, "")
			}
			last.lines, before = append(last.lines, l.text), l.printed
		} else if begins && paragraph == recordedParagraphs[step]+1 && paragraph > 1 {
			last := &frames[len(frames)-1]
			last.lines = append(last.lines, "", "    …")
		}
		begins = false
	}
	return frames
}

// Sizes in the picture, in pixels: character cells, the rows that are seen at once, and the margin around them.
const (
	cellWidth, cellHeight, rows, margin = 7.8, 17, 30, 14
)

const drawingHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" aria-labelledby="t" xml:space="preserve">
<title id="t">A recorded run of make demo</title>
<style>
  text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328; white-space: pre }
  .screen { fill: #f6f8fa; stroke: #d1d9e0 } .step { fill: #0969da; font-weight: 600 } .measured { fill: #1a7f37; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .screen { fill: #0d1117; stroke: #3d444d } .step { fill: #4493f8 } .measured { fill: #3fb950 }
  }
  .scroll { transform: translateY(%[3]dpx); animation: scroll %.1[4]fs step-end infinite }
  @media (prefers-reduced-motion: reduce) { .scroll { animation: none } }
  @keyframes scroll {
`

// measured matches what the demo has found out.
var measured = regexp.MustCompile(`[0-9]+\.[0-9] ms|\b0 failed|([0-9]+) of [0-9]+ lines`)

// drawing returns frames as an animated SVG document. The text scrolls as in a terminal that is full. All of it is a
// single CSS animation, because GitHub removes SVG's own animation elements. A still of the document shows the end.
func drawing(frames []frame) string {
	var lines []string
	columns := 0
	for _, f := range frames {
		for _, line := range f.lines {
			lines, columns = append(lines, line), max(columns, utf8.RuneCountInString(line))
		}
	}
	whole := frames[len(frames)-1].after + atTheEnd
	scrolled := func(lines int) int { return (rows - lines) * cellHeight }
	width, height := int(float64(columns)*cellWidth)+2*margin, rows*cellHeight+2*margin

	var b strings.Builder
	fmt.Fprintf(&b, drawingHead, width, height, scrolled(len(lines)), whole.Seconds())
	shown := 0
	for _, f := range frames {
		shown += len(f.lines)
		fmt.Fprintf(&b, "    %.2f%% { transform: translateY(%dpx) }\n", 100*f.after.Seconds()/whole.Seconds(), scrolled(shown))
	}
	fmt.Fprintf(&b, "  }\n</style>\n"+`<rect class="screen" x="0.5" y="0.5" width="%d" height="%d" rx="6"/>`+"\n", width-1, height-1)
	fmt.Fprintf(&b, `<svg y="%d" width="%d" height="%d"><g class="scroll">`+"\n", margin, width, rows*cellHeight)
	for i, line := range lines {
		text := strings.TrimLeft(line, " ")
		if text == "" {
			continue
		}
		class := ""
		if text == line {
			class = ` class="step"`
		}
		// A length keeps columns in line, and the text in the picture, with any font.
		n := utf8.RuneCountInString(text)
		fmt.Fprintf(&b, `<text%s x="%.1f" y="%d" textLength="%.1f">%s</text>`+"\n", class, margin+float64(len(line)-len(text))*cellWidth,
			i*cellHeight+13, float64(n)*cellWidth, measured.ReplaceAllString(html.EscapeString(text), `<tspan class="measured">$0</tspan>`))
	}
	b.WriteString("</g></svg>\n</svg>\n")
	return b.String()
}
