package verb

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/spf13/cobra"
)

// answer is a document that many nodes have printed.
type answer interface {
	// about returns the node, and the beginning of the document.
	about() nodeDocument
	// unknownLevel names a level or verdict that this version does not know; empty if there is none.
	unknownLevel() string
}

// collect reads answers of many nodes from files, by node; "-" is standard input. A file may have several answers, with other
// lines between them, as logs of pods have. If a node has several answers, the last one counts.
func collect[T any, A interface {
	*T
	answer
}](cmd *cobra.Command, paths []string, kind string) (map[string]A, error) {
	byNode := map[string]A{}
	for _, path := range paths {
		in, err := input(cmd, path)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		text, err := io.ReadAll(in)
		if err != nil {
			return nil, err
		}
		answers, err := answers[T, A](text, kind)
		if err == nil && len(answers) == 0 {
			err = fmt.Errorf("it has no output of ruledump %s -o json", strings.ToLower(kind))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for _, a := range answers {
			byNode[a.about().Node] = a
		}
	}
	return byNode, nil
}

// answers reads the JSON documents that begin at the beginnings of lines.
func answers[T any, A interface {
	*T
	answer
}](text []byte, kind string) (out []A, err error) {
	for len(text) > 0 {
		if text[0] != '{' {
			_, text, _ = bytes.Cut(text, []byte("\n"))
			continue
		}
		decoder := json.NewDecoder(bytes.NewReader(text))
		a := A(new(T))
		if err := decoder.Decode(a); err != nil {
			return nil, fmt.Errorf("answer %d: %w", len(out)+1, err)
		}
		if d := a.about(); d.APIVersion != ruledump.APIVersion || d.Kind != kind {
			return nil, fmt.Errorf("answer %d is %s of %s, want %s of %s", len(out)+1, d.Kind, d.APIVersion, kind, ruledump.APIVersion)
		}
		if level := a.unknownLevel(); level != "" {
			return nil, fmt.Errorf("answer %d, %s is not known: another version wrote it", len(out)+1, level)
		}
		out, text = append(out, a), text[decoder.InputOffset():]
	}
	return out, nil
}

func (v *Preflight) about() nodeDocument { return v.nodeDocument }

func (v *Preflight) unknownLevel() string {
	if !slices.Contains(levels, v.Verdict) {
		return fmt.Sprintf("verdict %q", v.Verdict)
	}
	for _, f := range v.Findings {
		if !slices.Contains(levels, f.Level) {
			return fmt.Sprintf("finding %s: level %q", f.Check, f.Level)
		}
	}
	return ""
}

func (c *Check) about() nodeDocument { return c.nodeDocument }

func (c *Check) unknownLevel() string {
	if !slices.Contains(checkVerdicts, c.Verdict) {
		return fmt.Sprintf("verdict %q", c.Verdict)
	}
	for _, f := range c.Findings {
		if f.Level != levelBroken && f.Level != levelRemark {
			return fmt.Sprintf("finding %s: level %q", f.Cause, f.Level)
		}
	}
	return ""
}
