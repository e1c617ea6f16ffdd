mlmjointIndex({
 "methods": [
  [
   "mlm",
   "MLM"
  ],
  [
   "mrf",
   "MRF"
  ],
  [
   "mrf-l",
   "MRF-L"
  ],
  [
   "hcb",
   "HCB"
  ],
  [
   "ag",
   "AG"
  ],
  [
   "chain-ab",
   "chain A→B"
  ],
  [
   "chain-ba",
   "chain B→A"
  ],
  [
   "chain-mean",
   "chain, mean"
  ],
  [
   "chain-geo",
   "chain, geometric"
  ],
  [
   "gibbs",
   "Gibbs"
  ]
 ],
 "live": [
  [
   "chain-conf",
   "chain, surer first"
  ],
  [
   "ag-copula",
   "AG, own marginals"
  ],
  [
   "mrf-copula",
   "MRF, own marginals"
  ],
  [
   "head",
   "one pass"
  ]
 ],
 "examples": [
  [
   "street",
   "en-small",
   "A man is ___ ___ the street."
  ],
  [
   "casino",
   "en-small",
   "The ___ ___ at the casino."
  ],
  [
   "children",
   "en-small",
   "The ___ ___ playing in the park."
  ],
  [
   "hair",
   "en-small",
   "A ___ is brushing ___ hair."
  ],
  [
   "guitar",
   "en-small",
   "A woman is ___ the ___."
  ],
  [
   "grass",
   "en-small",
   "A ___ and ___ dog runs through the grass."
  ],
  [
   "bikes",
   "en-small",
   "Two boys are ___ their ___ along the river path."
  ],
  [
   "beach",
   "en-small",
   "Two ___ are chasing the same ___ along the beach."
  ],
  [
   "laundry",
   "en-small",
   "The cat sleeps ___ ___ of the warm laundry."
  ],
  [
   "glass",
   "en-small",
   "A woman is ___ ___ the fish behind the glass."
  ],
  [
   "horse",
   "en-small",
   "A ___ ___ is drawing a horse with six legs."
  ],
  [
   "bus",
   "en-small",
   "A ___ man in a ___ shirt is waiting for the bus."
  ],
  [
   "bromide",
   "rxnmapper",
   "An oxidation: one atom before and after"
  ],
  [
   "sulfonate",
   "rxnmapper",
   "A sulfonate ester: the atom that leaves and its successor"
  ],
  [
   "bevacizumab",
   "sapiens-vh",
   "Bevacizumab, residues 103 and 104"
  ],
  [
   "apitegromab",
   "sapiens-vh",
   "Apitegromab, residues 109 and 110"
  ]
 ]
});
