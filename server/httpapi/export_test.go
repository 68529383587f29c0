package httpapi

import (
	"maps"
	"slices"
)

// An Endpoint is a path and the methods allowed there. Nil methods allow all.
type Endpoint struct {
	Path    string
	Methods []string
}

// Endpoints returns all endpoints.
func Endpoints() (all []Endpoint) {
	for _, r := range endpoints {
		all = append(all, Endpoint{r.path, r.methods})
	}
	return all
}

// Parameters returns the parameters of /v1/auth with a fixed meaning.
func Parameters() []string { return slices.Sorted(maps.Keys(parameters)) }

// Fields returns the fields that the JSON objects of /v1/take may have, by the place
// of their description in openapi.yaml.
func Fields() map[string][]string {
	const schemas = "/components/schemas/"
	return map[string][]string{
		schemas + "Take":       (requestFields | listFields).names(),
		schemas + "ByLimit":    (limitFields | fieldCost | fieldReset | fieldID).names(),
		schemas + "ByRules":    (requestFields &^ ownFields).names(),
		schemas + "List":       listFields.names(),
		schemas + "Descriptor": descriptorFields.names(),
		schemas + "Descriptor/properties/entries/items": entryFields.names(),
	}
}

func (s fieldSet) names() (names []string) {
	for i, name := range fieldNames {
		if s.has(1 << i) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
