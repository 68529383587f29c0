package xds

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/penstock-io/penstock/rules"
	"google.golang.org/protobuf/proto"
)

// savedName is the file of the last response that was accepted: a checksum, and the response
// with the identity of the client in place of the server's.
const savedName = "rules-xds"

var (
	errSavedDamaged = errors.New("checksum does not match")
	errSavedOther   = errors.New("they are of another server or node")
)

// Restore puts the rules in use that the last process on this data directory used, and reports
// whether there are any: those of the same server and node.
func (c *Client) Restore(use rules.Use) bool {
	if c.o.Data == nil {
		return false
	}
	response, err := c.readSaved()
	if err == nil {
		err = c.parseAndUse(response, use)
	}
	switch {
	case err == nil:
		c.used = contentOf(response)
		c.log.Info("rules: restored those of the last run, until the xDS server answers", "addr", c.config.Addr)
	case !errors.Is(err, fs.ErrNotExist):
		c.log.Warn("rules: those of the last run are not restored", "err", err)
	}
	return err == nil
}

func (c *Client) readSaved() (*discovery.DiscoveryResponse, error) {
	saved, err := c.o.Data.ReadFile(savedName, 2*rules.MaxTotalBytes)
	if err != nil {
		return nil, err
	}
	sum, message := saved[:min(len(saved), sha256.Size)], saved[min(len(saved), sha256.Size):]
	response := &discovery.DiscoveryResponse{}
	want := sha256.Sum256(message)
	if !bytes.Equal(sum, want[:]) || proto.Unmarshal(message, response) != nil {
		return nil, errSavedDamaged
	}
	if response.GetControlPlane().GetIdentifier() != c.identity() {
		return nil, errSavedOther
	}
	return response, nil
}

// save keeps a response. Without it, a restart only takes longer to get its rules.
func (c *Client) save(response *discovery.DiscoveryResponse) {
	if c.o.Data == nil {
		return
	}
	kept := &discovery.DiscoveryResponse{
		VersionInfo: response.GetVersionInfo(), Resources: response.GetResources(), TypeUrl: TypeURL,
		ControlPlane: &core.ControlPlane{Identifier: c.identity()},
	}
	message, err := proto.Marshal(kept)
	if err == nil {
		err = c.o.Data.WriteFile(savedName, func(w io.Writer) error {
			sum := sha256.Sum256(message)
			_, err := w.Write(append(sum[:], message...))
			return err
		})
	}
	if err != nil {
		c.log.Warn("rules: not saved for a restart", "err", err)
	}
}

func (c *Client) identity() string { return c.config.Addr + " " + c.config.Node }
