package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// builder builds programs with the go command.
type builder struct {
	goCommand string
	// module is the directory of the module that names the version.
	module string
	report io.Writer
}

// command is the go command in the module.
func (b builder) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.goCommand, args...)
	cmd.Dir = b.module
	// Without cgo the programs run in any image.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	return cmd
}

// output returns what the go command prints. An error has what it says.
func (b builder) output(ctx context.Context, args ...string) (string, error) {
	var stderr bytes.Buffer
	cmd := b.command(ctx, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, stderr.String())
	}
	return string(out), nil
}

// version is that of Kubernetes, such as "v1.37.2".
func (b builder) version(ctx context.Context) (string, error) {
	out, err := b.output(ctx, "list", "-m", "-f", "{{.Version}}", kubernetesModule)
	return strings.TrimSpace(out), err
}

// flagsOf are those of every build: else go compiles the packages again for each of two programs.
func flagsOf(version string) []string {
	number := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	ldflags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, variable := range []string{"gitVersion=" + version, "gitMajor=" + number[0], "gitMinor=" + number[1], "gitTreeState=archive"} {
			ldflags = append(ldflags, "-X", pkg+"."+variable)
		}
	}
	return []string{"-trimpath", "-buildvcs=false", "-ldflags", strings.Join(ldflags, " ")}
}

// build builds a program in the directory. An interrupted build leaves no program.
func (b builder) build(ctx context.Context, p program, version, dir string) error {
	begin := time.Now()
	fmt.Fprintf(b.report, "%s: looks for packages to compile\n", p.name)
	flags := flagsOf(version)
	stale, err := b.stale(ctx, p, flags)
	if err != nil {
		return err
	}
	if err := b.compile(ctx, p, flags, stale); err != nil {
		return err
	}
	args := []string{"build"}
	if p.test {
		args = []string{"test", "-c", "-vet=off"}
	}
	part := filepath.Join(dir, "."+p.name)
	defer os.Remove(part)
	if _, err := b.output(ctx, append(append(args, flags...), "-o", part, p.pkg)...); err != nil {
		return err
	}
	fmt.Fprintf(b.report, "%s: %v\n", p.name, time.Since(begin).Round(time.Second))
	return os.Rename(part, filepath.Join(dir, p.name))
}

// stale returns the packages of a program that go has not compiled yet. It leaves out programs and tests, which go
// compiles when it links. Of a test it returns Kubernetes' own packages alone: others may be of a module that go.mod need
// not name for the test, and then go refuses to compile them by name.
func (b builder) stale(ctx context.Context, p program, flags []string) ([]string, error) {
	args, condition := []string{"list", "-deps"}, `.Stale (ne .Name "main") (not .ForTest)`
	if p.test {
		args, condition = append(args, "-test"), condition+` .Module (eq .Module.Path "`+kubernetesModule+`")`
	}
	args = append(append(args, flags...), "-f", `{{if and `+condition+`}}{{.ImportPath}}{{end}}`, p.pkg)
	out, err := b.output(ctx, args...)
	return strings.Fields(out), err
}

// compile compiles packages, and shows how many are done.
func (b builder) compile(ctx context.Context, p program, flags, packages []string) error {
	if len(packages) == 0 {
		return nil
	}
	begin := time.Now()
	cmd := b.command(ctx, append(append([]string{"build", "-v"}, flags...), packages...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var said strings.Builder
	done, shown := 0, time.Now()
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		if strings.ContainsAny(lines.Text(), " \t:") { // not the path of a package
			fmt.Fprintln(&said, lines.Text())
			continue
		}
		done++
		if time.Since(shown) > progressEvery || done == len(packages) {
			fmt.Fprintf(b.report, "%s: %d of %d packages compiled, %v\n", p.name, done, len(packages), time.Since(begin).Round(time.Second))
			shown = time.Now()
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, said.String())
	}
	return nil
}

const progressEvery = 10 * time.Second
