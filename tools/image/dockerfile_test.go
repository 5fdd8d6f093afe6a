package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func TestDockerfile(t *testing.T) {
	t.Run("makes the same image", testDockerfileMakesTheSameImage)
}

func testDockerfileMakesTheSameImage(t *testing.T) {
	want, err := spec{binaries: testSpec(t).binaries, programs: programNames, version: "$VERSION", revision: "$REVISION"}.image("amd64")
	if err != nil {
		t.Fatal(err)
	}
	file, err := want.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	got, copied := lastStage(t)
	if diff := cmp.Diff(file.Config, got); diff != "" {
		t.Errorf("(-image +Dockerfile):\n%s", diff)
	}
	var programs []string
	for _, name := range programNames {
		programs = append(programs, "/out/"+name)
	}
	if diff := cmp.Diff(append(programs, "/"+binDir+"/", "/out/"+billName, "/"+billPath), copied); diff != "" {
		t.Errorf("COPY (-want +got):\n%s", diff)
	}
}

// lastStage returns what the Dockerfile's last stage configures and copies. It understands
// the few instructions that stand there, each on a line.
func lastStage(t *testing.T) (config v1.Config, copied []string) {
	t.Helper()
	data, err := os.ReadFile("../../deploy/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, stage, _ := strings.Cut(string(data), "\nFROM scratch\n")
	config.Labels = map[string]string{}
	for line := range strings.Lines(stage) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch instruction {
		case "LABEL":
			key, value, _ := strings.Cut(rest, "=")
			config.Labels[key] = strings.Trim(value, `"`)
		case "ENV":
			config.Env = append(config.Env, rest)
		case "ENTRYPOINT":
			if err := json.Unmarshal([]byte(rest), &config.Entrypoint); err != nil {
				t.Fatal(err)
			}
		case "COPY":
			copied = append(copied, strings.Fields(rest)[1:]...)
		case "ARG", "":
		default:
			t.Errorf("unexpected instruction %s", instruction)
		}
	}
	return config, copied
}
