package flows

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"
)

// NewCase returns a case of the corpus. The comment is the head of its archive.
func NewCase(corpus fs.FS, name, comment string, objects []apiservertest.Object, list []Flow) (c Case, err error) {
	manifests, err := Manifests(objects)
	if err != nil {
		return c, err
	}
	var f file
	for _, flow := range list {
		f.Flows = append(f.Flows, entryOf(flow))
	}
	written, err := yaml.Marshal(f)
	if err != nil {
		return c, err
	}
	archive := &txtar.Archive{Comment: []byte(comment), Files: []txtar.File{{Name: manifestsFile, Data: manifests}, {Name: "flows.yaml", Data: written}}}
	c = newCase(corpus, name, archive)
	c.flows = list
	return c, nil
}

// Write writes the case to a directory, and beside it the files that all cases of its corpus share, unless the directory
// has them: it is a corpus then. It returns the path of the case.
func (c Case) Write(dir string) (path string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{nodesFile, configFile} {
		shared := filepath.Join(dir, name)
		if _, err := os.Stat(shared); err == nil {
			continue
		}
		data, err := fs.ReadFile(c.shared, name)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(shared, data, 0o644); err != nil {
			return "", err
		}
	}
	path = filepath.Join(dir, c.Name+extension)
	return path, os.WriteFile(path, txtar.Format(c.files), 0o644)
}

func entryOf(f Flow) entry {
	e := entry{Name: f.Name, From: string(f.From), To: f.To.String(), Protocol: string(f.Protocol), Port: f.Port}
	if f.Protocol == ICMP {
		e.To = f.To.Addr().String()
	}
	e.Expect = wanted{Endpoints: texts(f.Expect.Endpoints), Sticky: f.Expect.Sticky, As: f.Expect.As, Source: string(f.Expect.Source), Result: string(f.Expect.Result)}
	return e
}

// Manifests is the inverse of Objects. It leaves out what is empty.
func Manifests(objects []apiservertest.Object) ([]byte, error) {
	var documents [][]byte
	for _, o := range objects {
		kinds, _, err := apiservertest.Scheme.ObjectKinds(o)
		if err != nil {
			return nil, err
		}
		data, err := yaml.Marshal(o)
		if err != nil {
			return nil, err
		}
		fields := map[string]any{}
		if err := yaml.Unmarshal(data, &fields); err != nil {
			return nil, err
		}
		fields["apiVersion"], fields["kind"] = kinds[0].GroupVersion().String(), kinds[0].Kind
		removeEmpty(fields)
		if data, err = yaml.Marshal(fields); err != nil {
			return nil, err
		}
		documents = append(documents, data)
	}
	return bytes.Join(documents, []byte("---\n")), nil
}

// removeEmpty removes fields that hold nothing.
func removeEmpty(fields map[string]any) {
	for name, value := range fields {
		of, isObject := value.(map[string]any)
		if isObject {
			removeEmpty(of)
		}
		if value == nil || isObject && len(of) == 0 {
			delete(fields, name)
		}
	}
}
