package main

import (
	"fmt"

	"github.com/nftproxy/nftproxy/internal/ruledump/colour"
	"github.com/nftproxy/nftproxy/internal/ruledump/services"
	"github.com/spf13/cobra"
)

func newServicesCommand() *cobra.Command {
	var from sourceOfServices
	format := newFormat("table", "wide", "json", "yaml")
	cmd := &cobra.Command{
		Use:   "services [NAME]",
		Short: "List what becomes of the addresses of each Service",
		Long: `services prints a line for each address of each Service: where its clients go, under which
traffic policy, how long they stay there, and who may dial it. All of it is read back from
the rules, whose comments name the Service. Where a Service has no endpoint to send some
clients to, the line says whether they are refused or dropped.

The policy is "-" for a ClusterIP with endpoints: its rules are the same under both. Node
and zone of endpoints are shown (-o wide) where the objects are known: --manifests and
--kubeconfig. "External" are external IPs and load balancer IPs.

Where the proxy counts (its feature gate NFTProxyServiceCounters), two more columns have the
connections that were sent to an endpoint, and their bytes in both directions. Both begin at 0
when an address comes into the kernel or the tables are made anew.`,
		Example: `  # Everything on this node.
  ruledump services

  # One Service, with its endpoints.
  ruledump services -n shop web -o wide

  # Which Services have most connections? (The proxy has to count.)
  ruledump services -o json | jq -r '.frontends[] | "\(.connections) \(.namespace)/\(.service) \(.address)"' | sort -rn | head

  # Services that serve nobody, on another node.
  ruledump services --dump node-1.json -o json | jq -r '.frontends[] | select(.unserved) | .namespace + "/" + .service' | sort -u`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, filter, err := from.open(cmd, args)
			if err != nil {
				return err
			}
			defer s.Close()
			if err := s.LoadCounts(); err != nil {
				return err
			}
			list, err := services.Of(s.Snapshot, filter)
			if err != nil {
				return err
			}
			if len(list.Frontends) == 0 && filter != (services.Filter{}) {
				return fmt.Errorf("the rules have no %s: see whether it exists, is not headless or ExternalName, and has a ClusterIP", filter)
			}
			if format.value == "table" || format.value == "wide" {
				return list.Table(cmd.OutOrStdout(), format.value == "wide", colour.For(cmd.OutOrStdout()))
			}
			return writeValue(cmd.OutOrStdout(), format.value, list)
		},
	}
	from.addTo(cmd, "only Services in this namespace")
	format.addTo(cmd)
	return cmd
}

// sourceOfServices is a source, and the flag that names Services together with the argument.
type sourceOfServices struct {
	source
	namespace string
}

func (f *sourceOfServices) addTo(cmd *cobra.Command, namespace string) {
	f.source.addTo(cmd)
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", namespace)
	cmd.ValidArgsFunction = f.complete
}

// open gets the rules, and the filter for the Services that are named.
func (f *sourceOfServices) open(cmd *cobra.Command, args []string) (*opened, services.Filter, error) {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	filter, err := services.ParseFilter(f.namespace, name)
	if err != nil {
		return nil, filter, err
	}
	s, err := f.source.open(cmd)
	return s, filter, err
}

// complete completes the name of a Service from the rules.
func (f *sourceOfServices) complete(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	s, err := f.source.open(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer s.Close()
	list, err := services.Of(s.Snapshot, services.Filter{Namespace: f.namespace})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	seen := map[string]bool{}
	var names []string
	for i := range list.Frontends {
		name := list.Frontends[i].Namespace + "/" + list.Frontends[i].Service
		if f.namespace != "" {
			name = list.Frontends[i].Service
		}
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
