package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/mutation"
)

func TestMutants(t *testing.T) {
	name := func(i int) string { return "[sig-network] " + mutants[i].spec + " [Conformance]" }
	run := func(failed ...int) partResult {
		result := partResult{took: 90 * time.Second}
		for i := range mutants {
			result.specs = append(result.specs, spec{name: name(i), outcome: passed})
		}
		for _, i := range failed {
			result.specs[i].outcome = "failed"
		}
		return result
	}
	result := func(mutant int, p partResult) mutantResult {
		return mutantResult{mutants[mutant].mutation, mutants[mutant].spec, p}
	}
	for title, c := range map[string]struct {
		result mutantResult
		want   string
	}{
		"the sound proxy passes all":             {mutantResult{mutation: "none", partResult: run()}, ""},
		"a spec that fails without a mutation":   {mutantResult{mutation: "none", partResult: run(1)}, "fails " + name(1)},
		"a mutant that fails its spec is found":  {result(1, run(1)), ""},
		"a mutant that passes all is not found":  {result(1, run()), "not found"},
		"a mutant that fails another's spec too": {result(1, run(0, 1)), ""},
		"another's spec does not find a mutant":  {result(1, run(0)), "not found"},
		"specs that do not run find nothing":     {result(1, partResult{specs: run(1).specs[1:]}), "want 3"},
	} {
		t.Run(title, func(t *testing.T) {
			err := c.result.err()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if page := mutantsPage([][2]string{{"nftproxy", "v1"}}, []mutantResult{c.result}); err != nil && !strings.Contains(page, "**"+err.Error()+"**") || !strings.Contains(page, c.result.mutation) {
				t.Errorf("%v is not on the page:\n%s", err, page)
			}
		})
	}
	t.Run("the focus matches the specs alone", func(t *testing.T) {
		focus := regexp.MustCompile(mutantFocus())
		for i := range mutants {
			if !focus.MatchString(name(i)) {
				t.Errorf("%s does not match", name(i))
			}
		}
		if longer := "[sig-network] " + mutants[0].spec + " and more"; focus.MatchString(longer) {
			t.Errorf("%s matches", longer)
		}
	})
	t.Run("the mutations exist", func(t *testing.T) {
		for _, m := range mutants {
			if _, err := mutation.Find(m.mutation); err != nil {
				t.Error(err)
			}
		}
	})
}
