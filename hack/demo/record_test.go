package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRecording(t *testing.T) {
	t.Run("chooses paragraphs", func(t *testing.T) {
		r := &recording{}
		for _, text := range []string{"1. left out\n\n    a\n", "\n3. one paragraph of two\n\n    b\n    c", "\n\n    d\n\n    e\n", "\n7. left out\n"} {
			fmt.Fprint(r, text)
		}
		start := r.lines[0].printed
		for i := range r.lines {
			r.lines[i].printed = start
			if r.lines[i].text == "    c" {
				start = start.Add(time.Second)
				r.lines[i].printed = start
			}
		}
		got := framesOf(r.lines)
		want := []frame{
			{[]string{"$ make demo"}, 0},
			{[]string{"", "3. one paragraph of two"}, reading},
			{[]string{"", "    b"}, 2 * reading},
			{[]string{"    c", "", "    …"}, 3*reading + time.Second},
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(frame{})); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("draws what is XML, with its text", func(t *testing.T) {
		drawn := textOf(t, drawing([]frame{{[]string{"6. <a> & b"}, 0}, {[]string{"", "    0 failed, 40.9 ms"}, time.Second}}))
		for _, want := range []string{"6. <a> & b", "0 failed, 40.9 ms"} {
			if !strings.Contains(drawn, want) {
				t.Errorf("no %q in %s", want, drawn)
			}
		}
	})
}

// textOf returns the text of an XML document, and fails the test if it is none.
func textOf(t *testing.T, document string) string {
	t.Helper()
	var text strings.Builder
	for d := xml.NewDecoder(strings.NewReader(document)); ; {
		token, err := d.Token()
		if err == io.EOF {
			return text.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := token.(xml.CharData); ok {
			text.Write(data)
		}
	}
}
