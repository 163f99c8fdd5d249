#!/bin/sh
echo <% .Data.name %> {{ stays }}
