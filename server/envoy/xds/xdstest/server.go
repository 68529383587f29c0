// Package xdstest is a management server for tests: it serves rules over xDS, and records what
// its clients say.
package xdstest

import (
	"net"
	"strconv"
	"sync"
	"sync/atomic"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
)

// TypeURL is the type of the resources.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// A Server sends its resources to each stream, and again when they change or when a client has
// another version, as go-control-plane does: what was rejected is sent again at once.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer

	// Requests receives every request; more than it holds are dropped.
	Requests chan *discovery.DiscoveryRequest

	grpc *grpc.Server
	addr string

	nonce   atomic.Int64
	mu      sync.Mutex
	version string // "": nothing to send
	all     []*anypb.Any
	changed chan struct{} // closed by a change
}

// Start serves on an address.
func Start(addr string, o ...grpc.ServerOption) (*Server, error) {
	l, err := net.Listen("tcp", addr) //nolint:noctx // the listener of a test
	if err != nil {
		return nil, err
	}
	s := &Server{Requests: make(chan *discovery.DiscoveryRequest, 1000), addr: l.Addr().String(), changed: make(chan struct{})}
	s.grpc = grpc.NewServer(o...)
	discovery.RegisterAggregatedDiscoveryServiceServer(s.grpc, s)
	go func() { _ = s.grpc.Serve(l) }() // until Stop
	return s, nil
}

// Addr returns the address.
func (s *Server) Addr() string { return s.addr }

// Stop closes all connections.
func (s *Server) Stop() { s.grpc.Stop() }

// Set replaces the resources by messages.
func (s *Server) Set(version string, messages ...[]byte) {
	var all []*anypb.Any
	for _, m := range messages {
		all = append(all, &anypb.Any{TypeUrl: TypeURL, Value: m})
	}
	s.SetAny(version, all...)
}

// SetAny replaces the resources.
func (s *Server) SetAny(version string, all ...*anypb.Any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.all = version, all
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) current() (response *discovery.DiscoveryResponse, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &discovery.DiscoveryResponse{VersionInfo: s.version, Resources: s.all, TypeUrl: TypeURL}, s.changed
}

// StreamAggregatedResources serves one client.
func (s *Server) StreamAggregatedResources(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	requests := make(chan *discovery.DiscoveryRequest)
	go func() {
		defer close(requests)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- r:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	for request := range requests {
		select {
		case s.Requests <- request:
		default:
		}
		if err := s.respond(stream, request.GetVersionInfo()); err != nil {
			return err
		}
	}
	return nil
}

// respond waits until there is another version than the client's, and sends it.
func (s *Server) respond(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer, version string) error {
	for {
		response, changed := s.current()
		if response.GetVersionInfo() != version {
			response.Nonce = strconv.FormatInt(s.nonce.Add(1), 10)
			return stream.Send(response)
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}
