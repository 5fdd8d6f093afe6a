package verb

import (
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/spf13/cobra"
)

func newCheckCommand() *cobra.Command {
	var from source
	cmd := &cobra.Command{
		Use:   "check [NAME]",
		Short: "Say what does not work on this node, for whom, and why",
		Long: `check walks the first packet of each kind of client to each address of each Service through the
rules of all programs, as explain does, and prints one line for each cause.

The exit status is 0 if everything works, 1 if something is broken, and 2 if check could not
find out.`,
		Example: `  # What does not work on this node?
  ruledump check`,
		Args: cobra.MaximumNArgs(1),
	}
	from.addNamesTo(cmd)
	format := newFormat("text", "json", "html")
	format.addTo(cmd)
	return from.reads(cmd, func(cmd *cobra.Command, rules *ruledump.Snapshot, filter Filter) error {
		if from.conn != nil {
			rules.AddOthers(cmd.Context(), from.conn, false)
		}
		c, err := CheckNode(rules, filter)
		if err == nil {
			err = format.show(cmd.OutOrStdout(), c)
		}
		if err != nil {
			return err
		}
		return c.Verdict.status()
	})
}

// CheckNode checks the frontends of the Services that the filter selects.
func CheckNode(s *ruledump.Snapshot, filter Filter) (*Check, error) {
	frontends, err := frontendsOf(s, filter)
	if err != nil {
		return nil, err
	}
	c := &Check{
		nodeDocument: aboutNode("Check", s), Taken: s.Taken, Verdict: verdictUnknown, Findings: []CheckFinding{}, Clients: []CheckClient{},
		Services: []CheckService{}, Endpoints: []CheckEndpoint{}, NotLookedAt: s.NotLookedAt, rules: s, Proxy: CheckProxy{State: "unknown"},
	}
	for _, f := range frontends {
		c.Services = append(c.Services, CheckService{f.ServicePort, addressOf(f) + "/" + f.Protocol.String(), string(f.Kind), []int{}})
	}
	return c, nil
}

// Text implements View.
func (c *Check) Text(p *Page) {
	p.printf("%s: %s\n", c.nodeText(), c.Verdict)
}
