package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protojson"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/internal/protocol"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nodelocal"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// newWatchCommand returns the command that prints a node's Services.
func newWatchCommand() *cobra.Command {
	o := defaultOptions()
	var format string
	cmd := &cobra.Command{
		Use:   "node-local-watch",
		Short: "Print the Services of a node, and each change",
		Long: `node-local-watch follows a node-local server and prints one JSON object a line. Each is an Update of
the node-local API with one change; {"sync":{}} ends those that belong together. The first has "full": true. While the
server is away, it prints nothing; when one is back, only the difference.`,
		Args:          noArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "jsonl" {
				return fmt.Errorf("--output: %q must be jsonl", format)
			}
			o.overrideHostname()
			return watchNodeLocal(signalContext(), o, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	o.addSome(flags, "node-local-source", "node-local-max-ports", "node-local-max-addresses", "node-local-max-bytes",
		"node-local-cert-file", "node-local-key-file", "node-local-ca-file")
	flags.StringVar(&o.hostname, "hostname-override", "", "The name of the Node; by default the host name")
	flags.StringVar(&o.serviceProxyName, "service-proxy-name", "",
		"The --service-proxy-name of the server; a server with another one is refused")
	flags.StringSliceVar(&o.nodeLocal.keys.Labels, "service-labels", nil,
		"Keys of labels of Services to print with their ports")
	flags.StringSliceVar(&o.nodeLocal.keys.Annotations, "service-annotations", nil,
		"Keys of annotations of Services to print with their ports")
	flags.StringVarP(&format, "output", "o", "jsonl", "The format: jsonl is one JSON object a line")
	_ = cmd.MarkFlagRequired("node-local-source") // the flag exists
	return cmd
}

func watchNodeLocal(ctx context.Context, o *options, out io.Writer) error {
	nodeName, err := o.nodeName()
	if err != nil {
		return err
	}
	client, err := o.nodeLocal.newClient(ctx, nodelocal.Options{Node: nodeName, ServiceProxyName: o.serviceProxyName})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return client.Run(ctx) })
	printer := &linePrinter{out: bufio.NewWriter(out)}
	group.Go(func() error {
		ctx, stop := context.WithCancelCause(ctx)
		printer.stop = stop
		err := model.NewLoop(client, printer, model.LoopOptions{Logger: klog.FromContext(ctx)}).Run(ctx)
		if printer.err != nil {
			return printer.err
		}
		return err
	})
	return group.Wait()
}

// linePrinter is a backend that prints changes.
type linePrinter struct {
	out *bufio.Writer
	// stop ends the program when its output is closed; err is the error of the last write.
	stop context.CancelCauseFunc
	err  error
}

// Sync implements model.Backend.
func (p *linePrinter) Sync(_ context.Context, changes *model.Changes) error {
	if err := p.print(changes); err != nil {
		p.err = err
		p.stop(err)
	}
	return nil
}

func (p *linePrinter) print(changes *model.Changes) error {
	var updates []*nodelocalv1.Update
	if changes.Node != nil {
		updates = append(updates, &nodelocalv1.Update{Node: protocol.EncodeNode(changes.Node)})
	}
	if changes.ServiceCIDRsChanged {
		updates = append(updates, &nodelocalv1.Update{ServiceCidrs: protocol.EncodeServiceCIDRs(changes.ServiceCIDRs)})
	}
	for _, id := range slices.SortedFunc(maps.Keys(changes.Ports), model.PortID.Compare) {
		if port := changes.Ports[id]; port != nil {
			updates = append(updates, &nodelocalv1.Update{Set: []*nodelocalv1.ServicePort{protocol.EncodePort(port)}})
		} else {
			updates = append(updates, &nodelocalv1.Update{Delete: []*nodelocalv1.PortID{protocol.EncodeID(id)}})
		}
	}
	updates = append(updates, &nodelocalv1.Update{Sync: &nodelocalv1.Sync{}})
	updates[0].Full = changes.Full
	lines := json.NewEncoder(p.out)
	lines.SetEscapeHTML(false)
	for _, update := range updates {
		line, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(update)
		if err != nil {
			return err
		}
		// Compacted as a RawMessage, because protojson varies its blanks on purpose.
		if err := lines.Encode(json.RawMessage(line)); err != nil {
			return err
		}
	}
	return p.out.Flush()
}
