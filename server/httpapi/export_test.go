package httpapi

import (
	"maps"
	"slices"
)

// A Route is an address and the methods that are answered there; none for all.
type Route struct {
	Path    string
	Methods []string
}

// Routes returns what the door answers.
func Routes() (all []Route) {
	for _, r := range routes {
		all = append(all, Route{r.path, r.methods})
	}
	return all
}

// Parameters returns those of /v1/auth that have a meaning of their own.
func Parameters() []string { return slices.Sorted(maps.Keys(parameters)) }

// Members returns what the objects of /v1/take may hold, by where openapi.yaml
// describes them.
func Members() map[string][]string {
	const schemas = "/components/schemas/"
	return map[string][]string{
		schemas + "Take":       (ofQuestion | inList).names(),
		schemas + "ByLimit":    (byLimit | saidCost).names(),
		schemas + "ByRules":    (byRules | saidCost).names(),
		schemas + "List":       inList.names(),
		schemas + "Descriptor": ofDescriptor.names(),
		schemas + "Descriptor/properties/entries/items": ofEntry.names(),
	}
}

func (s said) names() (names []string) {
	for i, name := range memberNames {
		if s.has(1 << i) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
