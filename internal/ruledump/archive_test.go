package ruledump

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/nft"
)

func reportOf(t *testing.T, files ...File) string {
	t.Helper()
	var b bytes.Buffer
	if err := WriteReport(&b, "nftproxy-node-1", time.Unix(1e9, 0), files); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// sparse is an archive of a file of 3 GB without data: truncate -s 3G log.txt; tar -cSf - log.txt | gzip | base64
const sparse = "H4sIAAAAAAACA+3QMQqDQBQE0D3KnkAUN14kJ7CyERZ0Ax4/YqmYQMAU8l4zH6b4MGMeqrKU" +
	"cKV61aW05Wqfx7tJzaML8Rn+4DWXfooxTDl/XOFb/7P2ZIVLHgAAAAAAAAAAAHATbzVruTgAKAAA"

func TestReport(t *testing.T) {
	written := &Snapshot{Header: Header{Origin: Kernel, Node: "node-1"}, Tables: []*nft.Table{everything()}}
	rules := File{RulesFile, []byte(dumpText(t, written))}
	t.Run("reads back as a dump with files", func(t *testing.T) {
		read, err := FromDump(strings.NewReader(reportOf(t, File{"log.txt", []byte("a line\n")}, rules)))
		if err != nil {
			t.Fatal(err)
		}
		expectSame(t, written, read)
		if names := slices.Sorted(maps.Keys(read.Files)); !slices.Equal(names, []string{"log.txt"}) || string(read.Files["log.txt"]) != "a line\n" {
			t.Errorf("files %v", read.Files)
		}
	})
	good := reportOf(t, rules)
	bomb, err := base64.StdEncoding.DecodeString(sparse)
	if err != nil {
		t.Fatal(err)
	}
	nested := bytes.Buffer{}
	w := gzip.NewWriter(&nested)
	if _, err := w.Write([]byte(good)); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, text, want string }{
		{"without rules", reportOf(t), "this is no report of ruledump's: it has no file rules.json"},
		{"with damaged rules", reportOf(t, File{RulesFile, []byte("{")}), "rules.json: the dump is truncated: it ends in the middle"},
		{"with a report as its rules", reportOf(t, File{RulesFile, []byte(good)}), "rules.json: this is no dump: at byte 1: "},
		{"that ends in the middle", good[:len(good)/2], "the report is damaged: unexpected EOF"},
		{"of which the beginning is left", good[:5], "the report is damaged: "},
		{"of a few bytes with a file of gigabytes", string(bomb), "the report has more than 1073741824 bytes"},
		{"compressed twice", nested.String(), "the report is damaged: "},
	} {
		t.Run(tt.name+" is refused", func(t *testing.T) {
			if _, err := FromDump(strings.NewReader(tt.text)); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("error %v\nwant  %s", err, tt.want)
			}
		})
	}
}
