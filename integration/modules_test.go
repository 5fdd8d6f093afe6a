package integration

import (
	"debug/buildinfo"
	"os"
	"strings"
	"testing"

	"github.com/blang/semver/v4"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// TestModules compares what is linked into the programs with least-versions.txt. It needs no network, which
// make vulnerabilities does, and finds a version that falls back, not a vulnerability that was published since.
func TestModules(t *testing.T) {
	text, err := os.ReadFile("least-versions.txt")
	if err != nil {
		t.Fatal(err)
	}
	linked := map[string]string{}
	for _, program := range []string{"kube-proxy", "ruledump"} {
		info, err := buildinfo.ReadFile(lab.Binary(t, program))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range info.Deps {
			linked[m.Path] = m.Version
		}
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 3 {
			t.Fatalf("least-versions.txt: %q has %d fields, want module, version and vulnerability", line, len(fields))
		}
		module, least, vulnerability := fields[0], fields[1], fields[2]
		switch version, there := linked[module]; {
		case !there:
			t.Errorf("least-versions.txt: no program links %s", module)
		case versionOf(t, version).LT(versionOf(t, least)):
			t.Errorf("%s %s is linked, and %s is fixed in %s", module, version, vulnerability, least)
		}
	}
}

func versionOf(t *testing.T, text string) semver.Version {
	t.Helper()
	v, err := semver.Parse(strings.TrimPrefix(text, "v"))
	if err != nil {
		t.Fatalf("version %q: %v", text, err)
	}
	return v
}
