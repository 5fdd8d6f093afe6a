package main

import (
	"strings"
	"testing"
)

func TestClusterCIDR(t *testing.T) {
	for _, tt := range []struct{ name, args, want string }{
		{"missing, the flag is named", "", "--cluster-cidr: not set"},
		{"missing, another mode is named", "", "or choose another --detect-local-mode"},
		{"given", "--cluster-cidr=10.0.0.0/8", ""},
		{"not needed", "--detect-local-mode=NodeCIDR", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := strings.Join(mustParse(t, strings.Fields(tt.args)...).warnings, "\n")
			if !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
				t.Errorf("warnings %q, want %q", got, tt.want)
			}
		})
	}
}
