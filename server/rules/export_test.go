package rules

import (
	"maps"
	"slices"
)

// FieldNames returns the names of all fields of a rule file.
func FieldNames() []string { return slices.Sorted(maps.Keys(fieldPlaces)) }

// UnitNames returns the values of unit.
func UnitNames() []string { return unitNames[Second:] }
