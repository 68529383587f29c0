package rls_test

import (
	"strings"
	"testing"

	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/penstock-io/penstock/server/envoy/rls"
)

func TestNewRequiresEngine(t *testing.T) {
	if _, err := rls.New(nil, nil); err == nil {
		t.Error("New without an engine succeeded")
	}
}

func TestReflectionListsServices(t *testing.T) {
	_, l := startServer(t, newEngine(t, newMemory(), userRules, nil), nil)
	stream, err := reflectionpb.NewServerReflectionClient(dial(t, l)).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	request := func(m *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	list := request(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	var names []string
	for _, service := range list.GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	const service = "envoy.service.ratelimit.v3.RateLimitService"
	if all := strings.Join(names, " "); !strings.Contains(all, service) || !strings.Contains(all, "grpc.health.v1.Health") {
		t.Errorf("got services %s", all)
	}
	file := request(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service + ".ShouldRateLimit"},
	})
	if len(file.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("no file describes the method: %v", file)
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
}
