package deploytest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// A release is what a cluster is given.
type release []meta.Object

// newObject makes an object of each kind that a release may have.
var newObject = map[meta.TypeMeta]func() meta.Object{
	{APIVersion: "apps/v1", Kind: "Deployment"}:                      func() meta.Object { return &apps.Deployment{} },
	{APIVersion: "v1", Kind: "ConfigMap"}:                            func() meta.Object { return &core.ConfigMap{} },
	{APIVersion: "v1", Kind: "Service"}:                              func() meta.Object { return &core.Service{} },
	{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}:      func() meta.Object { return &network.NetworkPolicy{} },
	{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"}:           func() meta.Object { return &policy.PodDisruptionBudget{} },
	{APIVersion: "monitoring.coreos.com/v1", Kind: "ServiceMonitor"}: func() meta.Object { return &monitoring.ServiceMonitor{} },
}

// decodeRelease decodes the objects in a text of YAML documents.
func decodeRelease(text string) (r release, err error) {
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		o, err := decodeObject([]byte(document))
		if err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, document)
		}
		if o != nil {
			r = append(r, o)
		}
	}
	return r, nil
}

// decodeObject decodes an object as strictly as a cluster does that is told to: fields that
// its kind does not have, and fields that occur twice, are errors. Without an object it
// returns nil.
func decodeObject(document []byte) (meta.Object, error) {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil || string(text) == "null" {
		return nil, err
	}
	var kind meta.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &kind); err != nil {
		return nil, err
	}
	if newObject[kind] == nil {
		return nil, fmt.Errorf("there is no kind %v", kind)
	}
	o := newObject[kind]()
	problems, err := kjson.UnmarshalStrict(text, o)
	if err == nil && len(problems) > 0 {
		err = problems[0]
	}
	return o, err
}

// objectsOf returns the objects of a kind.
func objectsOf[T meta.Object](r release) (found []T) {
	for _, o := range r {
		if o, ok := o.(T); ok {
			found = append(found, o)
		}
	}
	return found
}

// only returns the object of a kind that a release has once.
func only[T meta.Object](t *testing.T, r release) T {
	t.Helper()
	found := objectsOf[T](r)
	if len(found) != 1 {
		t.Fatalf("%d objects are a %T, want 1", len(found), *new(T))
	}
	return found[0]
}

func TestDecodeRefusesWhatClustersDoNotKnow(t *testing.T) {
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n"
	for document, want := range map[string]string{
		service + "spec: {ports: [{port: 1}]}":          "",
		"# nothing":                                     "",
		service + "spec: {prts: []}":                    `unknown field "spec.prts"`,
		service + "spec: {Ports: []}":                   `unknown field "spec.Ports"`,
		service + "spec: {}\nspec: {}":                  `key "spec" already set`,
		service + "spec: {ports: [{port: x}]}":          "cannot unmarshal string",
		"apiVersion: v1beta1\nkind: Service\nspec: {}":  "there is no kind",
		"apiVersion: v1\nkind: ConfigMap\ndata: {a: 5}": "cannot unmarshal number",
		"apiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\nspec: {endpoints: [{prt: a}]}": `unknown field "spec.endpoints[0].prt"`,
	} {
		_, err := decodeRelease(document)
		if got := fmt.Sprint(err); (err == nil) != (want == "") || want != "" && !strings.Contains(got, want) {
			t.Errorf("%s\ngot %v, want %q", document, err, want)
		}
	}
}

// Every object has another name among those of its kind, so that none replaces another.
func (r release) checkNames(t *testing.T) {
	t.Helper()
	var seen []string
	for _, o := range r {
		name := fmt.Sprintf("%T %s", o, o.GetName())
		if slices.Contains(seen, name) || o.GetName() == "" {
			t.Errorf("%s has no name, or is there twice", name)
		}
		seen = append(seen, name)
	}
}
